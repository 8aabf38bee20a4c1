"""A network file: its layers, its text, and the parameters that its layers have."""

from dataclasses import dataclass, field

from errors import UserError

WITHOUT_LAYER = "no layer of lpsgd computes it"


class Unfit(Exception):
    """What no layer of lpsgd computes."""


class Misread(Unfit):
    """An input of another form than the layer takes."""


def attribute(module, path):
    """What the module has at a path such as "layers.0.weight"."""
    inner, _, last = path.rpartition(".")
    return getattr(module.get_submodule(inner), last)


@dataclass(frozen=True)
class Output:
    """What a layer gives: its name in the network file, and the shape of one sample, as PyTorch has it."""

    layer: str
    shape: tuple


@dataclass
class Layer:
    kind: str
    inputs: list  # of Output
    keys: dict  # of the network file
    output: Output

    @property
    def name(self):
        return self.output.layer


@dataclass
class Network:
    layers: list = field(default_factory=list)
    parameters: dict = field(default_factory=dict)  # with running statistics; names and shapes as here
    origins: dict = field(default_factory=dict)  # the module's names of all these
    implied: set = field(default_factory=set)  # the module's tensors that layers stand for, such as masks
    problems: dict = field(default_factory=dict)  # what has no layer: the places of each
    notes: list = field(default_factory=list)  # what the user is told
    ending: object = None  # what the module does to the last layer's output: a softmax, or nothing

    def tensor_of(self, module, name):
        """The module's tensor that this one here is. It may have several names there."""
        return attribute(module, self.origins[name])

    def can_share(self, kind, suffix, owner):
        """Whether a layer of this kind may take this parameter from the layer `owner`."""
        is_embedding = any(one.kind == "embedding" and one.name == owner for one in self.layers)
        is_free = not any(one.keys.get("weight_of") == owner for one in self.layers)
        return kind == "dense" and suffix == "weight" and is_embedding and is_free

    def unscaled(self, output):
        """What layers that multiply by a constant make `output` of, and their factor."""
        scales = {layer.output: layer for layer in self.layers if layer.kind == "scale"}
        factor = 1.0
        while output in scales:
            factor *= scales[output].keys["factor"]
            (output,) = scales[output].inputs
        return output, factor

    def drop_unread_scales(self):
        """Those whose factor another layer has in it."""
        kept = self.layers[-1:]
        for layer in reversed(self.layers[:-1]):
            if layer.kind != "scale" or any(layer.output in one.inputs for one in kept):
                kept.append(layer)
        self.layers = kept[::-1]


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def short(value):
    """As the network file writes a pair: one number where both are equal."""
    first, second = pair(value)
    return first if first == second else [first, second]


def unlike(defaults, **keys):
    """The keys that differ from a layer's defaults."""
    return {key: value for key, value in keys.items() if value != defaults[key]}


def reordered(shape):
    """lpsgd's order of dimensions: (H, W, C) for PyTorch's (C, H, W)."""
    return [*shape[1:], shape[0]] if len(shape) == 3 else list(shape)


def text(name, shape, network, comment):
    """`shape`: of one sample, in PyTorch's order."""
    lines = [f"# {line}" for line in comment]
    lines += [f"name: {_value(name)}", f"input: {_value(reordered(shape))}"]
    lines += [f"classes: {network.layers[-1].output.shape[-1]}", "layers:"]
    before = "in"
    for layer in network.layers:
        inputs = [one.layer for one in layer.inputs]
        keys = {layer.kind: layer.name}
        if inputs != [before]:
            keys["input"] = inputs[0] if len(inputs) == 1 else inputs
        keys.update(layer.keys)
        lines.append("  - {" + ", ".join(f"{key}: {_value(value)}" for key, value in keys.items()) + "}")
        before = layer.name
    return "\n".join(lines) + "\n"


def check_scores(network):
    """Raises UserError unless the last layer gives the scores of two classes or more."""
    if not network.layers:
        raise UserError("the module computes nothing that is a layer of lpsgd")
    shape = network.layers[-1].output.shape
    if len(shape) not in (1, 2):
        raise UserError(
            f"the module's output has the shape {shape} a sample; scores are (classes) or (frames, classes)"
        )
    if shape[-1] < 2:
        loss = "lpsgd's loss, softmax cross-entropy"
        raise UserError(f"the module gives one score; {loss}, takes one for each class")


def vocabulary(network):
    """How many tokens the embeddings know; 2 if there is none."""
    sizes = [layer.keys["vocabulary"] for layer in network.layers if layer.kind == "embedding"]
    return min(sizes, default=2)


def _value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, str) and value.lower() in ("null", "true", "false"):
        return f'"{value}"'  # a word, not what YAML makes of it
    return repr(value) if isinstance(value, float) else str(value)
