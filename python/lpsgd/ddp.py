"""A communication hook of PyTorch's DistributedDataParallel: gradients go through lpsgd's codecs."""

import json
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from . import library
from .pipeline import Pipeline
from .transport import Transport

_NORMS = tuple(
    getattr(nn, name)
    for name in ("LayerNorm", "GroupNorm", "RMSNorm")
    if hasattr(nn, name)
) + (nn.modules.batchnorm._NormBase,)
_KINDS = {
    nn.modules.conv._ConvNd: "conv",
    nn.Linear: "dense",
    nn.RNNBase: "lstm",
    nn.RNNCellBase: "lstm",
    nn.Embedding: "embedding",
    nn.EmbeddingBag: "embedding",
}
_STATE_FORMAT = 1
_EXCHANGE = "_lpsgd_exchange"  # a model's attribute


def compress_gradients(model, codec, *, min_elements="auto", rules=(), warmup_steps=0, seed=1, timeout=None):
    """Exchanges the gradients of `model`, a DistributedDataParallel, through `codec`, in both directions, in place of its
    all-reduce. All ranks of its process group call it, before the first backward pass.

    codec: as in lpsgd's configuration: "onebit", "{kind: qsgd, bits: 4, bucket: 512}", or a dictionary.
    min_elements: smaller tensors stay in float32; "auto" keeps more than 99 % of all values quantized.
    rules: exceptions, the first that applies: {"name": "head.*", "kind": "dense", "codec": "none"}; one of name and
        kind may be left out.
    warmup_steps: in so many steps at the start gradients take PyTorch's own all-reduce, without codecs.
    seed: of stochastic rounding.
    timeout: of a message, a datetime.timedelta; by default PyTorch's for a new process group.

    Gradients become the mean over ranks: the same bits on every rank, and in every run. Returns a GradientExchange.
    Raises ValueError on all ranks if the model or the arguments of one are not fit for it, or differ between ranks. (On
    one rank alone if `model` is no DistributedDataParallel there, and so has no process group.)
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(f"model is a {type(model).__name__}; expected a DistributedDataParallel")
    exchange = GradientExchange(model, (codec, min_elements, rules), warmup_steps, seed, timeout)
    try:
        model.register_comm_hook(exchange, GradientExchange.hook)
    except Exception:
        exchange.close()
        raise
    setattr(model, _EXCHANGE, exchange)  # so that the model refuses to be copied
    return exchange


def _policy_text(codec, min_elements, rules):
    """The policy as YAML. A codec that is given as text stays as it is written."""

    def flow(value):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    lines = [f"codec: {flow(codec)}", f"min_elements: {flow(min_elements)}"]
    if rules:
        lines.append("rules:")
    for rule in rules:
        if not isinstance(rule, dict):
            raise ValueError(f"rules: {rule!r} is not a dictionary")
        words = [
            f"{key}: {flow(value) if key == 'codec' else json.dumps(value, ensure_ascii=False)}"
            for key, value in rule.items()
        ]
        lines.append("  - {" + ", ".join(words) + "}")
    return "\n".join(lines) + "\n"


def _tensors_of(model):
    """(name, kind, parameter) of each parameter that DistributedDataParallel exchanges, in the order of their definition."""
    tensors, known = [], set()
    for path, module in model.module.named_modules():
        norm = isinstance(module, _NORMS)
        kind = next((kind for base, kind in _KINDS.items() if isinstance(module, base)), None)
        for own, parameter in module.named_parameters(recurse=False):
            # As DistributedDataParallel has it, which names a parameter of the whole model with a dot in front.
            name = f"{path}.{own}"
            if not parameter.requires_grad or name in model.parameters_to_ignore or parameter in known:
                continue
            known.add(parameter)
            name = name.removeprefix(".")
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
                raise ValueError(f"{name}: sparse gradients cannot be exchanged; expected sparse=False")
            matrix = parameter.dim() > 1
            tensors.append((name, "norm" if norm else ((kind or "dense") if matrix else "bias"), parameter))
    if not tensors:
        raise ValueError("the model has no parameter to train")
    for name, _, parameter in tensors:
        if not parameter.dtype.is_floating_point:
            raise ValueError(f"{name} is of type {parameter.dtype}; expected a floating-point type")
    devices = {parameter.device for _, _, parameter in tensors}
    if len(devices) > 1:
        raise ValueError(
            f"the model's parameters are on {len(devices)} devices; expected one device for each process"
        )
    return tensors


def _shape_in_memory(parameter):
    """The shape with its dimensions in the order in which they lie in memory."""
    order = sorted(range(parameter.dim()), key=lambda dimension: -parameter.stride(dimension))
    return tuple(parameter.shape[dimension] for dimension in order)


class GradientExchange:
    """What compress_gradients() returns: the state of a rank's exchange.

    step: the number of exchanges so far, on which stochastic rounding depends.
    codecs: the codec of each parameter, by name.
    bytes_float32: what bytes_sent would have been without codecs, in the mean over ranks.
    """

    def __init__(self, model, policy, warmup_steps, seed, timeout):
        self.step = 0
        self.bytes_float32 = 0
        self._warmup_steps, self._warmup_bytes = warmup_steps, 0
        self._seed = seed
        self._group = model.process_group
        self._transport = Transport(model.process_group, timeout)
        try:
            mine = self._make_coder(model, policy)
        except Exception as error:  # the other ranks wait for what this one has
            self._transport.gather({"error": str(error)})
            raise
        self._refuse_differences(mine)
        self._pipeline = Pipeline(self._coder, self._transport)

    def _make_coder(self, model, policy):
        """Returns what must be equal on all ranks."""
        if getattr(model, _EXCHANGE, None) is not None:
            raise ValueError("the gradients of this model are compressed already")
        if not isinstance(self._seed, int) or not 0 <= self._seed < 2**32:
            raise ValueError(f"seed is {self._seed}; allowed: whole numbers from 0 to 4294967295")
        if type(self._warmup_steps) is not int or self._warmup_steps < 0:
            raise ValueError(f"warmup_steps is {self._warmup_steps}; allowed: whole numbers from 0")
        tensors = _tensors_of(model)
        self._names = [name for name, _, _ in tensors]
        self._numbers = {parameter: number for number, (_, _, parameter) in enumerate(tensors)}
        self._transport.use(tensors[0][2].device)
        wire_format = library.load().lpsgd_wire_format_version()
        with self._transport.on_device():
            try:
                self._coder = self._transport.with_room(
                    lambda: library.Coder(
                        _policy_text(*policy),
                        [(name, kind, _shape_in_memory(parameter)) for name, kind, parameter in tensors],
                        rank=self._transport.rank,
                        ranks=self._transport.ranks,
                        seed=self._seed,
                        cuda=self._transport.cuda,
                    )
                )
            except library.LibraryError as error:
                raise ValueError(str(error)) from None
        for line in self._coder.warnings if self._transport.rank == 0 else ():
            warnings.warn("lpsgd: " + line.replace("exchange.", ""), stacklevel=4)
        self.codecs = dict(zip(self._names, self._coder.codecs))
        return {
            "wire format": wire_format,
            "seed": self._seed,
            "warmup_steps": self._warmup_steps,
            "parameters": [(name, tuple(parameter.shape)) for name, _, parameter in tensors],
            "codecs": self._coder.codecs,
        }

    def _refuse_differences(self, mine):
        everyone = self._transport.gather(mine)
        for rank, theirs in enumerate(everyone):
            if "error" in theirs:
                raise ValueError(f"rank {rank}: {theirs['error']}")
        for rank, theirs in enumerate(everyone):
            different = [key for key in mine if theirs[key] != everyone[0][key]]
            if different:
                raise ValueError(f"rank {rank} has other {' and '.join(different)} than rank 0")

    @property
    def bytes_sent(self):
        """By this rank so far, in both rounds."""
        return self._pipeline.bytes_sent + self._warmup_bytes

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DistributedDataParallel calls it for each of its buckets, in their order."""
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise RuntimeError("lpsgd: sparse gradients cannot be exchanged; expected sparse=False")
        try:
            numbers = [self._numbers[parameter] for parameter in bucket.parameters()]
        except KeyError:
            raise RuntimeError(
                "lpsgd: a gradient is exchanged of a parameter that compress_gradients did not find; freeze and thaw "
                "parameters before DistributedDataParallel is made"
            ) from None
        is_warmup = self.step < self._warmup_steps
        if bucket.index() == 0 and not is_warmup:
            self._pipeline.begin(self.step)
        ranks = self._transport.ranks
        self.bytes_float32 += 8 * buffer.numel() * (ranks - 1) // ranks
        if bucket.is_last():
            self.step += 1
        if is_warmup:
            self._warmup_bytes += 2 * buffer.element_size() * buffer.numel() * (ranks - 1) // ranks
            return allreduce_hook(self._group, bucket)
        return self._pipeline.start(
            bucket.index(), buffer, numbers, bucket.gradients(), last=bucket.is_last()
        )

    def seconds(self):
        """Seconds on this rank since the last call: `encode`, `decode` (with the owner's additions), and `wait`,
        in which the exchange waited for messages."""
        self._pipeline.require_idle()
        with self._transport.on_device():
            encode, decode = self._coder.take_seconds()
        return {"encode": encode, "decode": decode, "wait": self._pipeline.take_wait()}

    def state_dict(self):
        """This rank's state for a checkpoint: the step, and the residuals of error feedback. Each rank has its own. Call it
        between steps."""
        self._pipeline.require_idle()
        residuals = {}
        with self._transport.on_device():
            for number, name in enumerate(self._names):
                values = [self._residual(number, round_) for round_ in (1, 2)]
                if any(len(v) for v in values):
                    residuals[name] = values
        return {
            "format": _STATE_FORMAT,
            "rank": self._transport.rank,
            "ranks": self._transport.ranks,
            "seed": self._seed,
            "step": self.step,
            "codecs": dict(self.codecs),
            "residuals": residuals,
        }

    def load_state_dict(self, state):
        """Goes on from what state_dict() returned on this rank: then all later gradients have the same bits. Raises
        ValueError, and changes nothing, if it is of another rank, number of ranks, seed, model or codec.

        Or from a list of what it returned on every rank of a run that had another number of ranks: residuals of a
        rank's own gradients become the mean of the old ones, those of means go to their new owners.
        """
        self._pipeline.require_idle()
        if isinstance(state, (list, tuple)):
            return self._load_states(state)
        self._check_state(state, {"rank": self._transport.rank, "ranks": self._transport.ranks})
        given = []
        for number, (name, values) in enumerate(zip(self._names, self._residuals_in(state))):
            for round_, value in enumerate(values, start=1):
                size = self._coder.residual_size(number, round_)
                if value.numel() != size:
                    raise ValueError(
                        f"the exchange's state has {value.numel()} values of {name} in round {round_}, "
                        f"here it has {size}"
                    )
                given.append((number, round_, value))
        with self._transport.on_device():
            for number, round_, value in given:
                self._coder.set_residual(number, round_, value.data_ptr(), value.numel())
        self.step = state["step"]

    def _load_states(self, states):
        if len(states) == self._transport.ranks:
            return self.load_state_dict(states[self._transport.rank])
        if not states:
            raise ValueError("the list of the exchange's states is empty")
        self._check_state(states[0], {})
        for rank, state in enumerate(states):
            self._check_state(state, {"rank": rank, "ranks": len(states), "step": states[0]["step"]})
        values = [value for state in states for pair in self._residuals_in(state) for value in pair]
        with self._transport.on_device():
            try:
                self._coder.redistribute_residuals(
                    len(states), [(value.data_ptr(), value.numel()) for value in values]
                )
            except library.LibraryError as error:
                raise ValueError(f"the exchange's states: {error}") from None
        self.step = states[0]["step"]

    def _check_state(self, state, expected):
        if not isinstance(state, dict):
            raise ValueError(f"the exchange's state is a {type(state).__name__}; expected what state_dict() returned")
        missing = [key for key in ("format", "step", "codecs", "residuals") if key not in state]
        if missing:
            raise ValueError(f"the exchange's state has no {missing[0]}")
        if type(state["step"]) is not int or not 0 <= state["step"] < 2**32:
            raise ValueError(f"the exchange's state has step {state['step']}; expected a whole number below 2^32")
        for key in ("codecs", "residuals"):
            if not isinstance(state[key], dict):
                raise ValueError(f"the exchange's state has {key} of type {type(state[key]).__name__}; expected a dictionary")
        for name, pair in state["residuals"].items():
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(torch.is_tensor(value) for value in pair):
                raise ValueError(f"the exchange's state has no residual of both rounds for {name}; expected two tensors")
        for key, value in {"format": _STATE_FORMAT, "seed": self._seed, **expected}.items():
            if state.get(key) != value:
                raise ValueError(f"the exchange's state has {key} {state.get(key)}, here it is {value}")
        for name in dict.fromkeys([*self.codecs, *state["codecs"]]):
            kept, here = state["codecs"].get(name), self.codecs.get(name)
            if kept != here:
                raise ValueError(f"the exchange's state has codec {kept} for {name}, here it is {here}")

    def _residuals_in(self, state):
        """Those of each parameter, of rounds 1 and 2."""
        none = (_zeros(0), _zeros(0))
        return [
            [value.detach().to("cpu", torch.float32).contiguous() for value in state["residuals"].get(name, none)]
            for name in self._names
        ]

    def close(self):
        """Ends the exchange, and its process group, of a model that is not trained any more. All ranks call it."""
        self._pipeline.close()
        self._transport.close()

    def __reduce__(self):
        raise TypeError(
            "lpsgd: a model whose gradients are compressed cannot be copied or pickled; copy or save model.module, and "
            "the exchange's state_dict()"
        )

    def _residual(self, number, round_):
        values = _zeros(self._coder.residual_size(number, round_))
        if values.numel():
            self._coder.get_residual(number, round_, values.data_ptr(), values.numel())
        return values


def _zeros(size):
    return torch.zeros(size, dtype=torch.float32, device="cpu")
