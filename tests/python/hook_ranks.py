"""One rank of a test of the communication hook, with RANK, WORLD_SIZE and DEVICE (cpu or cuda) in the environment."""

import copy
import math
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "python"))
import lpsgd  # noqa: E402


def device():
    if os.environ["DEVICE"] == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())


def wrap(module, **options):
    """As a DistributedDataParallel on this rank's device."""
    return DistributedDataParallel(module.to(device()), **options)


def host(tensors):
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


class Given(nn.Module):
    """Its gradients are what it is called with."""

    def __init__(self, shapes, dtype=torch.float32):
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes])

    def forward(self, gradients):
        return sum((tensor * g.to(tensor.dtype)).sum() for tensor, g in zip(self.tensors, gradients))


def backward(model, gradients):
    """The means of one step."""
    model.zero_grad()
    model(gradients).backward()
    return host(parameter.grad for parameter in model.parameters())


def make(given, **options):
    shapes = [g.shape[2:] for g in given["gradients"]]
    module = Given(shapes, given.get("dtype", torch.float32))
    model = wrap(module, bucket_cap_mb=given.get("bucket_mb", 0.02), **options)
    more = {key: given[key] for key in ("seed", "warmup_steps") if key in given}
    return model, lpsgd.compress_gradients(model, given["codec"], min_elements=1, **more)


def own(given, step):
    return [g[step, dist.get_rank()].to(device()) for g in given["gradients"]]


def steps(given):
    """Means, by step."""
    model, exchange = make(given)
    means = [backward(model, own(given, step)) for step in range(len(given["gradients"][0]))]
    found = {
        "means": means,
        "step": exchange.step,
        "sent": exchange.bytes_sent,
        "float32": exchange.bytes_float32,
        "codecs": exchange.codecs,
        "seconds": exchange.seconds(),
    }
    exchange.close()
    return found


def each(given):
    """Several cases in one process, which takes seconds to start."""
    return [steps(one) for one in given["each"]]


def goes_on(given):
    """A second model goes on from the state of the first one after two steps."""
    model, exchange = make(given)
    for step in range(2):
        backward(model, own(given, step))
    file = pathlib.Path(given["folder"]) / f"state-{dist.get_rank()}.pt"
    torch.save(exchange.state_dict(), file)
    model, exchange = make(given)
    state = torch.load(file)
    errors = []
    for change in given["changes"]:
        try:
            exchange.load_state_dict({**state, **change})
        except ValueError as error:
            errors.append(str(error))
    exchange.load_state_dict(state)
    means = [backward(model, own(given, step)) for step in range(2, len(given["gradients"][0]))]
    return {"means": means, "errors": errors, "step": exchange.step}


def saves(given):
    """The state after two steps."""
    model, exchange = make(given)
    for step in range(2):
        backward(model, own(given, step))
    return exchange.state_dict()


def other_ranks(given):
    """Goes on from the states of another number of ranks; what then is its own, and a mean."""
    model, exchange = make(given)
    errors = []
    for states in given["wrong"]:
        try:
            exchange.load_state_dict(states)
        except ValueError as error:
            errors.append(str(error))
    assert exchange.step == 0 and not any(v.any() for pair in exchange.state_dict()["residuals"].values() for v in pair)
    exchange.load_state_dict(given["states"])
    return {"state": exchange.state_dict(), "mean": backward(model, own(given, 0)), "errors": errors}


def accumulates(given):
    """Two backward passes without an exchange and one with it. Then a step in which half of the tensors are not used."""
    model, exchange = make(given, find_unused_parameters=True)
    with model.no_sync():
        for step in range(2):
            model(own(given, step)).backward()
    model(own(given, 2)).backward()
    means = [host(parameter.grad for parameter in model.parameters())]
    half = len(given["gradients"]) // 2
    model.zero_grad(set_to_none=True)
    model(own(given, 3)[:half]).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    means.append(host(gradients[:half]))
    return {"means": means, "unused": gradients[half:], "step": exchange.step}


def network(given):
    """A network whose layers have all kinds, in the given memory format, trained for some steps. Its weights at the end,
    and its first gradients: those of this rank alone and the means."""
    memory_format = getattr(torch, given["format"])
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 5),
    ).to(memory_format=memory_format)
    model = wrap(net)
    exchange = lpsgd.compress_gradients(model, "{kind: qsgd, bits: 4}", **given["options"])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    alone = first = None
    for _ in range(4):
        images = torch.randn(4, 3, 8, 8).contiguous(memory_format=memory_format).to(device())
        labels = torch.randint(0, 5, (4,)).to(device())
        if first is None:
            loss = nn.functional.cross_entropy(net(images), labels)
            alone = torch.autograd.grad(loss, list(net.parameters()))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        if first is None:
            first = host(p.grad for p in net.parameters())
        optimizer.step()
    return {
        "codecs": exchange.codecs,
        "alone": host(alone),
        "first": first,
        "weights": host(net.parameters()),
    }


def joins(given):
    """Rank r has r steps more than rank 0; ranks without data take part with zeros."""
    model, exchange = make(given)
    with model.join():
        for step in range(2 + dist.get_rank()):
            means = backward(model, own(given, step))
    return {"means": [means], "step": exchange.step}


def two_models_of_some_ranks(given):
    """Ranks 1 and 2 exchange the gradients of two models in one backward pass, in a group of their own."""
    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return {}
    models = []
    for codec in ("none", "onebit"):
        module = Given([g.shape[2:] for g in given["gradients"]])
        models.append(wrap(module, bucket_cap_mb=0.02, process_group=group))
        lpsgd.compress_gradients(models[-1], codec, min_elements=1)
    means = []
    for step in range(3):
        gradients = [g[step, dist.get_rank() - 1].to(device()) for g in given["gradients"]]
        for model in models:
            model.zero_grad()
        sum(model(gradients) for model in models).backward()
        means.append([host(parameter.grad for parameter in model.parameters()) for model in models])
    return {"means": means}


def a_nan(given):
    """A NaN in the second step, which the optimizer leaves out, as a GradScaler does. Then a checkpoint is loaded."""
    model, exchange = make(given)
    means = []
    for step in range(4):
        gradients = own(given, step)
        if step == 1 and dist.get_rank() == 1:
            gradients[0].flatten()[5] = math.nan
        means.append(backward(model, gradients))
        if step == 1:
            state = exchange.state_dict()
    model, exchange = make(given)
    exchange.load_state_dict(state)
    resumed = [backward(model, own(given, step)) for step in (2, 3)]
    return {"means": means, "resumed": resumed}


def kept_memory(given):
    """PyTorch keeps nearly all of the GPU's memory, little of it in use, when the exchange needs some. It keeps many blocks,
    because it cannot give back one of which a part is in use."""
    model, _ = make(given)
    gradients = own(given, 0)
    room, block = torch.cuda.mem_get_info()[0] - (64 << 20), 512 << 20
    kept = [torch.empty(size, dtype=torch.uint8, device=device()) for size in [block] * (room // block) + [room % block]]
    del kept
    return {"means": [backward(model, gradients)], "room": room, "left": torch.cuda.mem_get_info()[0]}


def ddp_options(given):
    """Means with DistributedDataParallel's other options, and gradients of two types in one model."""
    results = []
    for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}):
        model, _ = make(given, **options)
        results.append([backward(model, own(given, step)) for step in range(3)])
    module = Given([g.shape[2:] for g in given["gradients"]])
    module.tensors[0].data = module.tensors[0].double()
    model = wrap(module, bucket_cap_mb=0.02)
    lpsgd.compress_gradients(model, given["codec"], min_elements=1)
    results.append([[m.float() for m in backward(model, own(given, step))] for step in range(3)])
    return {"all": results}


def misused(given):
    """Messages of errors after compress_gradients, and a state under another default type."""
    model, exchange = make(given)
    backward(model, own(given, 0))
    errors = {}
    torch.set_default_dtype(torch.float64)
    sizes = {name: [v.dtype for v in values] for name, values in exchange.state_dict()["residuals"].items()}
    torch.set_default_dtype(torch.float32)
    state = exchange.state_dict()
    actions = {
        "copy": lambda: copy.deepcopy(exchange),
        "copy of the model": lambda: copy.deepcopy(model),
        "twice": lambda: lpsgd.compress_gradients(model, "none"),
        **{f"state {name}": lambda bad=bad: exchange.load_state_dict(bad) for name, bad in {
            "type": 5,
            "keys": {name: state[name] for name in state if name != "residuals"},
            "step": {**state, "step": -1},
            "no dictionary": {**state, "residuals": [1]},
            "no tensors": {**state, "residuals": {name: [None, None] for name in state["residuals"]}},
            "list": [1],
            "rounds": {**state, "residuals": {name: pair[:1] for name, pair in state["residuals"].items()}},
        }.items()},
        "close": exchange.close,
        "close again": exchange.close,
        "state afterwards": lambda: exchange.state_dict()["step"],
        "backward afterwards": lambda: backward(model, own(given, 0)),
    }
    for name, action in actions.items():
        try:
            errors[name] = action()
        except (TypeError, ValueError, RuntimeError) as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return {"errors": errors, "types": sizes}


def odd_parameters(given):
    """Empty ones, also of another type; one that lies transposed; one with two names of which one is ignored; a frozen
    embedding of sparse gradients, and a module that has a flag of that name."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.sparse = True
            self.none = nn.Parameter(torch.zeros(0))
            self.none64 = nn.Parameter(torch.zeros(0, dtype=torch.float64))
            self.turned = nn.Parameter(torch.zeros(32, 48).t())
            self.e = nn.Embedding(48, 32)
            self.l = nn.Linear(32, 48, bias=False)
            self.l.weight = self.e.weight
            self.frozen = nn.Embedding(4, 4, sparse=True).requires_grad_(False)

        def forward(self, a, b):
            return (self.turned * a).sum() + (self.l.weight * b).sum() + self.none.sum() + self.none64.sum()

    net = Odd()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["e.weight"])
    model = wrap(net, bucket_cap_mb=0.001)
    exchange = lpsgd.compress_gradients(
        model, "{kind: onebit, bucket: column, error_feedback: false}", min_elements=1,
        rules=[{"name": "\U0001f600*", "codec": "none"}],
    )
    for step in range(3):
        model.zero_grad()
        model(*(g[step, dist.get_rank()].to(device()) for g in given["gradients"])).backward()
    return {"turned": net.turned.grad.cpu(), "codecs": exchange.codecs, "step": exchange.step}


def refused(given):
    """The message of the ValueError that compress_gradients raises on this rank."""
    net = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 2))
    if given["kind"] == "sparse":
        net.append(nn.Embedding(10, 3, sparse=True))
    if given["kind"] == "complex":
        net.extra = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    model = net if given["kind"] == "plain" else wrap(net)
    try:
        lpsgd.compress_gradients(model, **given["options"][dist.get_rank()])
    except (ValueError, lpsgd.LibraryError) as error:
        return {"type": type(error).__name__, "message": str(error)}
    return {"message": None}


def dies(given):
    """The last rank is killed in its third step. What the others get then, and when they go on."""
    model, _ = make(given)
    for step in range(2):
        backward(model, own(given, step))
    loss = model(own(given, 2))
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = []
    for _ in range(2):
        try:
            loss.backward()
        except RuntimeError as error:
            errors.append(str(error))
        if len(errors) == 1:
            loss = model(own(given, 2))
    return {"errors": errors}


def run(case, folder):
    """folder/given.pt holds the case's arguments. What it returns goes to folder/out-RANK.pt."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "gloo"
    if device().type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device())
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        os.environ["NCCL_HOSTID"] = f"rank{rank}"  # so that ranks may share a GPU
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    torch.save(globals()[case](torch.load(folder / "given.pt")), folder / f"out-{rank}.pt")
    dist.destroy_process_group()
