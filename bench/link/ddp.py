"""One rank of PyTorch's DistributedDataParallel over gloo, on random images: seconds of a step (link.py
starts it)."""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "nn"), os.path.join(ROOT, "bench", "peers"), os.path.join(ROOT, "python")]
import lpsgd  # noqa: E402
import torch_networks  # noqa: E402
from jobs import shape_and_classes  # noqa: E402
from torch_blas import blas, refuse_reference_blas  # noqa: E402


# As lpsgd: no batch norm buffers are sent in a step. No copies between gradients and buckets.
LEAN = {"broadcast_buffers": False, "gradient_as_bucket_view": True}
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def training_step(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)


def faster_format(make, x, y, averages, steps=3):
    """The memory format with the faster best step, without exchange; rank 0 decides for all. An average of
    weights leaves them as NCHW, whatever they were."""
    best = {}
    for i, layout in enumerate(FORMATS.values()):
        network = make().to(memory_format=layout)
        optimizer, images = sgd(network), x.contiguous(memory_format=layout)
        training_step(network, optimizer, images, y)
        if averages:
            PeriodicModelAverager(period=2).average_parameters(network.parameters())
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            training_step(network, optimizer, images, y)
            seconds.append(time.perf_counter() - start)
        best[i] = min(seconds)
    choice = torch.tensor([min(best, key=best.get)])
    dist.broadcast(choice, 0)
    return list(FORMATS)[choice.item()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--hook", choices=["full", "fp16", "powersgd", "lpsgd"], default="full")
    parser.add_argument("--codec", help="of lpsgd's hook")
    parser.add_argument("--local-steps", type=int, default=0,
                        help="post-local SGD from the start: weights are averaged every so many steps")
    parser.add_argument("--one-bucket", action="store_true", help="all gradients in one message")
    options = parser.parse_args()
    refuse_reference_blas()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(os.path.join(ROOT, "configs/networks", options.network + ".yaml")) as file:
        text = file.read()
    shape, classes = shape_and_classes(text)
    height, width, channels = map(int, shape)
    torch.manual_seed(1)
    x = torch.randn(options.batch, channels, height, width)
    y = torch.randint(0, classes, (options.batch,))

    def make():
        return torch_networks.make(options.network)

    layout = faster_format(make, x, y, options.local_steps > 0)
    network = make().to(memory_format=FORMATS[layout])
    x = x.contiguous(memory_format=FORMATS[layout])
    if options.one_bucket:
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40
        model = torch.nn.parallel.DistributedDataParallel(network, **LEAN, bucket_cap_mb=1 << 20)
    else:
        model = torch.nn.parallel.DistributedDataParallel(network, **LEAN)
    if options.hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif options.hook == "powersgd":
        # Rank 2 from the third step on: as its authors advise, and the earliest that PyTorch allows.
        model.register_comm_hook(
            powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3),
            powerSGD_hook.powerSGD_hook,
        )
    elif options.hook == "lpsgd":
        lpsgd.compress_gradients(model, options.codec)
    optimizer, warm_up = sgd(model), max(5, options.steps // 2)
    if options.local_steps:
        state = post_localSGD_hook.PostLocalSGDState(None, None, 0, post_local_gradient_allreduce=False)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=options.local_steps, warmup_steps=0)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
        warm_up = -(-warm_up // options.local_steps) * options.local_steps  # whole periods, as the timed steps
    for _ in range(warm_up):
        training_step(model, optimizer, x, y)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(options.steps):
        training_step(model, optimizer, x, y)
    dist.barrier()
    print(
        json.dumps(
            {
                "step_s": (time.perf_counter() - start) / options.steps,
                "torch": torch.__version__,
                "blas": blas(),
                "format": layout,
            }
        )
    )


main()
