#!/usr/bin/env python3
"""PyTorch's training step on a GPU: the usual loop (eager), and the whole step as one CUDA graph (graph), also of the
model under torch.compile (compile).

    bench/peers/networks_torch_graph.py NAME... [--compute fp32|tf32|bf16] [--ways eager,graph,compile]
                                         [--formats nchw,nhwc] [--steps 40]

Prints one JSON object a line for each network, memory format and way: milliseconds a step (the best of three
means) and the peak of the memory that PyTorch allocated. The batch is the paper's for one GPU (EDBT 2018,
table 3), 32 for a network that is not in it. The input is on the GPU. `graph` captures forward, backward and
the fused optimizer: PyTorch's fastest form without a compiler. `compile` captures the same with the model compiled for the largest speed
(max-autotune-no-cudagraphs), which takes minutes. bench/peers/networks_torch.py measures the eager loop in turns with lpsgd.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCH = {
    "alexnet": 256,
    "vgg19": 32,
    "resnet50": 32,
    "resnet152": 16,
    "bn_inception": 64,
    "resnet20": 128,
    "resnet110": 128,
    "vit_b_16": 32,
}
SIDE = {"alexnet": 227, "resnet20": 32, "resnet110": 32}  # of the square image; 224 elsewhere
FORMATS = ("nchw", "nhwc")
WARM_UP = 5


def training_step(torch, torch_networks, name, memory_format, compute, way):
    """One step as a function; unless `way` is eager it can be captured as a CUDA graph."""
    captured = way != "eager"
    torch.manual_seed(1)
    layout = torch.channels_last if memory_format == "nhwc" else torch.contiguous_format
    side = SIDE.get(name, 224)
    model = torch_networks.make(name).cuda().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=captured)
    x = torch.randn(BATCH[name], 3, side, side, device="cuda").contiguous(memory_format=layout)
    run = torch.compile(model, mode="max-autotune-no-cudagraphs") if way == "compile" else model
    y = torch.randint(0, 10 if side == 32 else 1000, (BATCH[name],), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=not captured)  # a graph needs gradients at fixed addresses
        with torch.autocast("cuda", torch.bfloat16, enabled=compute == "bf16", cache_enabled=False):
            loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()

    return step


def seconds_of(torch, step, steps, captured):
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side_stream)
    torch.cuda.synchronize()
    run = step
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    means = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
        means.append((time.perf_counter() - start) / steps)
    return min(means)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="+", choices=sorted(BATCH), metavar="NAME", help=", ".join(sorted(BATCH))
    )
    parser.add_argument("--compute", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--ways", default="eager,graph", help="which of eager, graph and compile")
    parser.add_argument("--formats", default=",".join(FORMATS), help="memory formats: nchw and nhwc")
    parser.add_argument("--steps", type=int, default=40)
    a = parser.parse_args()
    if unknown := set(a.formats.split(",")) - set(FORMATS):
        parser.error(f"--formats: {', '.join(sorted(unknown))}: neither nchw nor nhwc")
    try:
        import torch
    except ImportError:
        print(f"networks_torch_graph: {sys.executable} has no PyTorch", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("networks_torch_graph: this PyTorch finds no GPU", file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT / "tests/nn"))
    import torch_networks

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = a.compute == "tf32"
    for name in a.names:
        for memory_format in a.formats.split(","):
            for way in a.ways.split(","):
                row = {
                    "network": name,
                    "compute": a.compute,
                    "layout": memory_format,
                    "way": way,
                    "batch": BATCH[name],
                }
                torch.cuda.reset_peak_memory_stats()
                try:
                    step = training_step(
                        torch, torch_networks, name, memory_format, a.compute, way
                    )
                    row["ms"] = round(1e3 * seconds_of(torch, step, a.steps, way != "eager"), 3)
                    row["mem_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
                except RuntimeError as error:  # a network that is too large must not end the others
                    row["error"] = str(error)[:200]
                step = None
                if way == "compile":
                    torch.compiler.reset()
                torch.cuda.empty_cache()
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
