"""A traced module as the layers of a network file."""

import inspect
import re

from errors import UserError
from torch import fx

from . import layers
from .network import Layer, Network, Output, Unfit
from .traced import BATCH

KEYWORDS = {"input": "x", "other": "y"}  # PyTorch's names of arguments, and the handlers'


class Converter:
    """Goes through the calls in their order. What has no layer is collected, so that one run names all of it."""

    def __init__(self, traced):
        self.network = Network()
        self._traced = traced
        self._found = {}  # what each node gives: an Output, a tuple of them, or a plain value
        self._taken = {"in"}  # names of layers
        self._modules = {name for name, _ in traced.module.named_modules()}
        self._owners = {}  # the layer of each parameter, by the parameter's identity
        (end,) = [node for node in traced.graph.nodes if node.op == "output"]
        self._last = end.args[0]

    def run(self):
        for node in _needed(self._traced):
            try:
                found = self._convert(node)
            except Unfit as error:
                self.network.problems.setdefault(str(error), []).append(self._place(node))
                # so that what follows is looked at, too
                is_value = node.op == "get_attr"
                found = None if is_value else Output(node.name, self._traced.shapes.get(node.name, (BATCH,))[1:])
            changed = layers.changed_by(node, self._traced.module)
            if changed is not None:  # later readers of its input read its output
                before = self._found[changed.name]
                self._found = {name: found if value is before else value for name, value in self._found.items()}
            self._found[node.name] = found
        return self.network

    def shape(self, node):
        """Of one sample of what the node gives."""
        shape = self._traced.shapes[node.name]
        if not shape or shape[0] != BATCH:
            raise Unfit(f"its output, {shape} for {BATCH} samples, does not have the samples first")
        return shape[1:]

    def emit(self, node, kind, inputs, shape=None, **keys):
        """Adds a layer, and returns what it gives. `shape`: if it is not that of what the node gives."""
        output = Output(self._free_name(node, kind), tuple(self.shape(node) if shape is None else shape))
        self.network.layers.append(Layer(kind, inputs, keys, output))
        return output

    def emit_with_parameters(self, node, kind, inputs, module, names, **keys):
        """A layer that has the module's tensors of these names, where they are not None."""
        if node.target in self._taken:
            raise Unfit("is called twice, but a layer of lpsgd is computed once, and shares no parameters")
        tensors = {name: getattr(module, name) for name in names if getattr(module, name) is not None}
        for tensor in tensors.values():
            owner = self._owners.setdefault(id(tensor), node.target)
            if owner != node.target:
                raise Unfit(f"has a parameter of {owner}, but layers of lpsgd share none")
        output = self.emit(node, kind, inputs, **keys)
        for name, tensor in tensors.items():
            self.network.parameters[f"{node.target}.{name}"] = tensor
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
        if node.op == "get_attr":
            raise Unfit("a tensor that belongs to no layer")
        module = layers.module_of(node, self._traced.module)
        if node.name not in self._traced.shapes and not layers.is_sequence_layer(module):
            return self._traced.values[node.name]  # such as a size
        args, keywords = self._resolve(node.args), self._resolve(node.kwargs)
        keywords = {KEYWORDS.get(name, name): value for name, value in keywords.items()}
        if module is None:
            handler = layers.of_function(node)
        else:
            if layers.has_hooks(module):
                raise Unfit("has hooks or parametrizations, which change what it computes")
            handler = layers.of_module(module)
            keywords["module"] = module
        try:
            inspect.signature(handler).bind(self, node, *args, **keywords)
        except TypeError as error:
            raise Unfit(f"arguments that lpsgd's layer does not have: {error}") from None
        return handler(self, node, *args, **keywords)

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
        inside = node.meta["inside"]
        is_module = node.op == "call_module"
        name = node.target if is_module else f"{inside}.{kind}" if inside else kind
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise UserError(f"'{name}' cannot be a layer's name, which has letters, digits, '_', '-' and dots alone")
        free, number = name, 1
        while free in self._taken or (free in self._modules and not (is_module and free == node.target)):
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free

    def _place(self, node):
        if node.op in ("call_module", "get_attr"):
            return node.target
        inside = node.meta["inside"]
        return f"{node.name} in {inside}" if inside else node.name


def _needed(traced):
    """The nodes that the scores depend on, in their order, and the inputs."""
    needed = set()
    for node in reversed(traced.graph.nodes):
        users = set(node.users)
        changed = layers.changed_by(node, traced.module)
        if changed is not None:
            users |= set(changed.users)
        if node.op == "output" or users & needed:
            needed.add(node)
    return [node for node in traced.graph.nodes if node in needed and node.op != "output"]
