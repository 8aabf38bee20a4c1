"""Compares lpsgd with PyTorch on ResNet-20: the first loss, every gradient and three steps of SGD.

PyTorch in float64 is the truth. With ReLU, float32 differs from float64 by its kinks, so PyTorch's own float32 is
the measure; with tanh every tensor must agree to 1e-4. Exits with 77 (skipped) where PyTorch is missing.

    pytorch_test.py DUMP_GRADIENTS NETWORK_FILE
"""
import json
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

torch.set_num_threads(1)
BATCH = 16


def load(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


def save(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        values = np.ascontiguousarray(values, "<f4")
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


class Block(torch.nn.Module):
    def __init__(self, inputs, filters, stride, act):
        super().__init__()
        nn = torch.nn
        self.act = act
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.downsample = None
        if stride != 1 or inputs != filters:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False),
                                            nn.BatchNorm2d(filters))

    def forward(self, x):
        y = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        return self.act(y + (x if self.downsample is None else self.downsample(x)))


class ResNet20(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        nn = torch.nn
        self.act = act
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        inputs = 16
        for i, filters in enumerate([16, 32, 64], 1):
            blocks = []
            for j in range(3):
                blocks.append(Block(inputs, filters, 2 if i > 1 and j == 0 else 1, act))
                inputs = filters
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.act(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def run_torch(act, dtype, weights, x, labels, steps):
    """What dump_gradients writes, as float64 arrays."""
    model = ResNet20(act).to(dtype)
    model.load_state_dict({k: torch.tensor(v).to(dtype) for k, v in weights.items()}, strict=False)
    model.train()
    assert [name for name, _ in model.named_parameters()] == list(weights), "the order of tensors is PyTorch's"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.tensor(x).permute(0, 3, 1, 2).to(dtype)
    out = {}
    for step in range(steps):
        optimizer.zero_grad()
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels).long())
        loss.backward()
        if step == 0:
            out["loss"] = np.array([loss.item()])
            out["logits"] = logits.detach().double().numpy()
            for name, p in model.named_parameters():
                out["gradient." + name] = p.grad.double().numpy().copy()
            for name, b in model.named_buffers():
                if "running" in name:
                    out["buffer." + name] = b.double().numpy().copy()
        if steps > 1:
            optimizer.step()
    for name, p in model.named_parameters():
        out["step." + name] = p.detach().double().numpy().copy()
    return out


def distance(a, b):
    return float(np.linalg.norm(a.astype(np.float64) - b) / max(np.linalg.norm(b), 1e-30))


def worst(ours, truth, prefix):
    names = [k for k in truth if k.startswith(prefix)]
    return max((distance(ours[k], truth[k]), k) for k in names)


def main():
    program, network = sys.argv[1:3]
    failures = []

    def check(what, value, limit):
        print(f"{'ok  ' if value <= limit else 'FAIL'} {what}: {value:.3g} (at most {limit:.3g})")
        if not value <= limit:
            failures.append(what)

    with tempfile.TemporaryDirectory() as folder:
        def ours(arguments):
            subprocess.run([program, network] + arguments, check=True)

        ours(["-", f"{folder}/weights", "--set", "name=weights"])
        weights = load(f"{folder}/weights")
        rng = np.random.default_rng(7)
        x = rng.standard_normal((BATCH, 32, 32, 3)).astype(np.float32)
        labels = rng.integers(0, 10, BATCH)
        save(f"{folder}/in", {**weights, "input": x, "labels": labels})
        for name, act in [("relu", torch.relu), ("tanh", torch.tanh)]:
            ours([f"{folder}/in", f"{folder}/out", "--set", f"parameters.activation={name}"])
            got = load(f"{folder}/out")
            truth = run_torch(act, torch.float64, weights, x, labels, 3 if name == "tanh" else 1)
            assert set(got) == set(truth), set(got) ^ set(truth)
            check(f"{name}: loss", distance(got["loss"], truth["loss"]), 1e-5)
            check(f"{name}: logits", distance(got["logits"], truth["logits"]), 1e-4)
            check(f"{name}: running statistics", worst(got, truth, "buffer.")[0], 1e-5)
            value, tensor = worst(got, truth, "gradient.")
            if name == "relu":
                single = run_torch(act, torch.float32, weights, x, labels, 1)
                limit, where = worst(single, truth, "gradient.")
                print(f"     PyTorch float32's own worst gradient: {limit:.3g} ({where})")
                check(f"relu: worst gradient ({tensor})", value, 3 * limit)
            else:
                check(f"tanh: worst gradient ({tensor})", value, 1e-4)
                value, tensor = worst(got, truth, "step.")
                check(f"tanh: worst parameter after three steps ({tensor})", value, 1e-4)
    sys.exit(1 if failures else 0)


main()
