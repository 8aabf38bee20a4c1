"""A traced module as the layers of a network file."""

import inspect
import re
from dataclasses import dataclass, field

import torch
from errors import UserError
from torch import fx

from . import converters, in_place, views
from .network import Layer, Misread, Network, Output, Unfit, attribute
from .source import cause
from .traced import holds_tensors
from .views import BATCH, Parameter, parameters_of

KEYWORDS = {"input": "x", "other": "y", "axis": "dim"}  # PyTorch's names of arguments, and the converters'


@dataclass(frozen=True, eq=False)
class Inner:
    """A call inside of a module that is one call for torch.fx, in place of a node."""

    op: str
    target: object
    name: str
    shape: tuple  # of one sample of what it gives
    meta: dict = field(default_factory=dict)


class Converter:
    """Goes through the calls in their order. Collects what has no layer, so that one run names all of it."""

    def __init__(self, traced):
        self.network = Network()
        self._traced = traced
        self._found = {}  # what each node gives: an Output, a tuple of them, or a plain value
        self._taken = {"in"}  # names of layers
        self._guessed = set()  # nodes that give what no layer gives, and that read views, or what reads them
        module = traced.module
        self._reserved = {name for name, _ in (*module.named_modules(), *module.named_parameters())}
        self._owners = {}  # the layer of each parameter, by the parameter's identity
        (end,) = [node for node in traced.graph.nodes if node.op == "output"]
        self._last = end.args[0]

    def run(self):
        for node in _needed(self._traced):
            found = self._tried(node, lambda: self._convert(node), lambda: self._unknown(node))  # noqa: B023
            changed = in_place.changed_by(node, self._traced.called_by(node))
            if changed is not None:  # later readers of its input read its output
                self._replace(self._found[changed.name], found)
            self._found[node.name] = found
        end = self._found.get(getattr(self._last, "name", None))
        if not self.network.problems and not isinstance(end, Output):
            self._tried(self._last, lambda: _refuse_as_scores(end), lambda: None)
        self.network.drop_unread_scales()
        return self.network

    def _replace(self, before, after):
        if isinstance(before, (Output, *views.BETWEEN)):  # no number: two sizes may be one object
            self._found = {key: after if value is before else value for key, value in self._found.items()}

    def shape(self, node):
        """Of one sample of what the node gives."""
        if isinstance(node, Inner):
            return node.shape
        shape = self._traced.shapes[node.name]
        if not shape or shape[0] != BATCH:
            raise Unfit(f"its output, {shape} for {BATCH} samples, does not have the samples first")
        return shape[1:]

    def emit(self, node, kind, inputs, shape=None, **keys):
        """Adds a layer, and returns what it gives. `shape`: if it is not that of what the node gives."""
        shape = self.shape(node) if shape is None else shape
        return self._add(kind, inputs, self._free_name(node, kind), shape, keys)

    def emit_with_parameters(self, node, kind, inputs, module, names, shapes=None, shape=None, **keys):
        """A layer that has the module's tensors of these names, where they are not None."""
        tensors = parameters_of(module, node.target, *names)
        return self.emit_with_tensors(node, kind, inputs, node.target, tensors, shapes, shape, **keys)

    def emit_with_tensors(self, node, kind, inputs, layer, tensors, shapes=None, shape=None, **keys):
        """A layer of this name. `tensors`: Parameters by their names there. `shapes`: of those that have
        other ones there."""
        if layer in self._taken:
            raise Unfit("is called twice, but a layer of lpsgd is computed once")
        owners = {suffix: self._owners.setdefault(id(one.tensor), layer) for suffix, one in tensors.items()}
        for suffix, owner in owners.items():
            if owner == layer:
                continue
            if not self.network.can_share(kind, suffix, owner):
                raise Unfit(f"has a parameter of {owner}; of lpsgd's layers one dense layer can share an embedding's")
            keys["weight_of"] = owner
        tensors = {suffix: one for suffix, one in tensors.items() if owners[suffix] == layer}
        self._taken.add(_checked(layer))
        output = self._add(kind, inputs, layer, self.shape(node) if shape is None else shape, keys)
        for suffix, one in tensors.items():
            name = f"{layer}.{suffix}"
            own_shape = (shapes or {}).get(suffix, one.tensor.shape)
            self.network.parameters[name] = one.tensor.detach().view(own_shape)
            self.network.origins[name] = one.name
        return output

    def buffer(self, name):
        """The module's tensor of this name."""
        return attribute(self._traced.module, name)

    def call(self, node, name, module, *args, shape, **keywords):
        """What the module of this name inside of the node's gives. `shape`: of one sample of its output."""
        inner = Inner("call_module", f"{node.target}.{name}", f"{node.name}.{name}", tuple(shape))
        unknown = Output(inner.name, inner.shape)
        return self._tried(inner, lambda: self._convert_call(inner, module, args, keywords), lambda: unknown)

    def call_function(self, node, function, *args, shape):
        """What a function that the node's module calls gives."""
        name = f"{node.name}.{getattr(function, '__name__', type(function).__name__)}"
        inner = Inner("call_function", function, name, tuple(shape), {"inside": node.target})
        unknown = Output(name, inner.shape)
        return self._tried(inner, lambda: self._convert_call(inner, None, args, {}), lambda: unknown)

    def numbers(self, node, numbers, args, keywords):
        """What the node, which only moves values, makes of the numbers of a view."""
        args, keywords = self._with_numbers(args), self._with_numbers(keywords)
        if node.op == "call_method":
            alike = {"view": "reshape", "view_as": "reshape_as"}  # whatever the order in memory
            function = getattr(torch.Tensor, alike.get(node.target, node.target))
        else:
            function = self._traced.called_by(node) if node.op == "call_module" else node.target
        try:
            return function(numbers, *args, **keywords)
        except Exception as error:  # such as after a call whose result had to be guessed
            raise Misread(f"cannot be followed: {cause(error)}") from None

    def _add(self, kind, inputs, name, shape, keys):
        output = Output(name, tuple(shape))
        self.network.layers.append(Layer(kind, inputs, keys, output))
        return output

    def is_last(self, node):
        """Whether the node gives the class scores."""
        return node is self._last

    def is_evaluating(self, node):
        """Whether the module that it calls stays in evaluation in training."""
        return node.op == "call_module" and node.target in self._traced.evaluating

    def _convert(self, node):
        if node.op == "placeholder":
            if any(isinstance(value, Output) for value in self._found.values()):
                raise Unfit("a second input; networks of lpsgd have one")
            return Output("in", self.shape(node)) if node.name in self._traced.shapes else None
        if node.name in self._traced.constants:
            return self._traced.constants[node.name]
        if node.op == "get_attr":
            return views.of_parameter(Parameter(node.target, attribute(self._traced.module, node.target)))
        if node.name not in self._traced.shapes and not holds_tensors(self._traced.values[node.name]):
            return self._traced.values[node.name]  # such as a size
        module = self._traced.called_by(node)
        return self._convert_call(node, module, self._resolve(node.args), self._resolve(node.kwargs))

    def _convert_call(self, node, module, args, keywords):
        if module is None:
            convert = converters.of_call(node)
        else:
            if any(_has_hooks(one) for one in module.modules()):
                raise Unfit("has hooks or parametrizations, which change what it computes")
            convert = converters.of_module(module)
            keywords = {**keywords, "module": module}
        taken = inspect.signature(convert)
        keywords = {
            KEYWORDS[name] if KEYWORDS.get(name) in taken.parameters else name: value
            for name, value in keywords.items()
        }
        try:
            taken.bind(self, node, *args, **keywords)
        except TypeError as error:
            raise Unfit(f"arguments that lpsgd's layer does not have: {error}") from None
        return convert(self, node, *args, **keywords)

    def _tried(self, node, convert, unknown):
        """What `convert` gives. Where that is Unfit, notes the problem; with what `unknown` gives, what
        follows is looked at, too."""
        read = [] if isinstance(node, Inner) else [one.name for one in node.all_input_nodes]
        reads_guess = any(name in self._guessed for name in read)
        if reads_guess:
            self._guessed.add(node.name)
        try:
            return convert()
        except Unfit as error:
            if not reads_guess or not isinstance(error, Misread):
                self.network.problems.setdefault(str(error), []).append(self._place(node))
            reads_part = any(isinstance(self._found[name], views.BETWEEN) for name in read)
            if reads_part or not self._has_samples(node):
                self._guessed.add(node.name)
            return unknown()

    def _has_samples(self, node):
        """Whether what it gives, if that is a tensor, has the samples first."""
        return isinstance(node, Inner) or self._traced.shapes.get(node.name, (BATCH,))[:1] == (BATCH,)

    def _unknown(self, node):
        def guessed(one):
            return Output(node.name, tuple(one.shape[1:])) if isinstance(one, torch.Tensor) else one

        value = self._traced.values.get(node.name)
        if isinstance(value, (tuple, list)):
            return tuple(guessed(one) for one in value)
        return Output(node.name, self._traced.shapes.get(node.name, (BATCH,))[1:])

    def _with_numbers(self, value):
        """An argument, with what torch itself takes in place of tensors."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._with_numbers(v) for v in value)
        if isinstance(value, dict):
            return {key: self._with_numbers(v) for key, v in value.items()}
        if isinstance(value, views.Constant):
            return value.value
        return views.of(value).numbers if isinstance(value, (Output, views.View)) else value

    def _resolve(self, value):
        """An argument, with what nodes give in place of the nodes."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._resolve(v) for v in value)
        if isinstance(value, dict):
            return {key: self._resolve(v) for key, v in value.items()}
        if isinstance(value, slice):
            return slice(self._resolve(value.start), self._resolve(value.stop), self._resolve(value.step))
        return self._found[value.name] if isinstance(value, fx.Node) else value

    def _free_name(self, node, kind):
        """The module's path; for a function the kind of layer, inside the module that calls it."""
        inside = node.meta.get("inside")
        is_module = node.op == "call_module"
        name = _checked(node.target if is_module else f"{inside}.{kind}" if inside else kind)
        free, number = name, 1
        while free in self._taken or (free in self._reserved and not (is_module and free == node.target)):
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free

    def _place(self, node):
        if node.op in ("call_module", "get_attr"):
            return node.target
        inside = node.meta["inside"]
        return f"{node.name} in {inside}" if inside else node.name


def _checked(name):
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        allowed = "letters, digits, '_', '-' and dots"
        raise UserError(f"'{name}' cannot be a layer's name, which has {allowed} alone")
    return name


def _refuse_as_scores(value):
    if views.is_of_layer(value):
        made = ", ".join(value.moves)
        scores = "a sample's scores are (classes) or (frames, classes)"
        raise Unfit(f"gives what {made} made of the output of a layer; {scores}")
    views.tensor(value)


def _has_hooks(module):
    """Whether it computes something else than its kind says."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names) or hasattr(module, "parametrizations")


def _needed(traced):
    """The nodes that the scores depend on, in their order, and the inputs."""
    needed = set()
    for node in reversed(traced.graph.nodes):
        users = set(node.users)
        changed = in_place.changed_by(node, traced.called_by(node))
        if changed is not None:
            users |= set(changed.users)
        if node.op == "output" or users & needed:
            needed.add(node)
    return [node for node in traced.graph.nodes if node in needed and node.op != "output"]
