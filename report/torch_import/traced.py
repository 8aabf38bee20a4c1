"""A module as a graph of calls (torch.fx), with the value or the shape of each call's result."""

import dis
import inspect
import os
import sys
import traceback
from dataclasses import dataclass

import torch
from errors import UserError
from torch import fx

from . import layers
from .source import cause

BATCH = 2  # samples of the batch that the shapes are found with
ONE_TENSOR = "it must be one tensor, the class scores"


@dataclass
class Traced:
    module: torch.nn.Module
    graph: fx.Graph
    shapes: dict  # of each node that is a tensor, with the batch
    values: dict  # of each node that is none
    evaluating: set  # names of the modules that stay in evaluation in training


class _Tracer(fx.Tracer):
    """Notes in which module each call stands, for the names of layers."""

    def __init__(self):
        super().__init__()
        self._inside = [""]

    def is_leaf_module(self, m, module_qualified_name):
        return layers.has_layer(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m, forward, args, kwargs):
        self._inside.append(self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._inside.pop()

    def create_node(self, *args, **kwargs):
        node = super().create_node(*args, **kwargs)
        node.meta["inside"] = self._inside[-1]
        return node


class _Shapes(fx.Interpreter):
    def __init__(self, module):
        super().__init__(module)
        self.shapes, self.values = {}, {}

    def run_node(self, n):
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.shapes[n.name] = tuple(result.shape)
        else:
            self.values[n.name] = result
        return result


def _unpack(proxy):
    """`out, state = lstm(x)`, which torch.fx of PyTorch 1 does not understand in the bytecode of Python 3.11."""
    frame = inspect.currentframe().f_back
    for one in dis.get_instructions(frame.f_code):
        if one.offset == frame.f_lasti and one.opname == "UNPACK_SEQUENCE":
            return iter([proxy[i] for i in range(one.argval)])
    return proxy.tracer.iter(proxy)


if sys.version_info >= (3, 11) and torch.__version__.startswith("1."):
    fx.Proxy.__iter__ = _unpack


def trace(module, samples):
    """`samples`: (BATCH, ...), in PyTorch's order."""
    module = module.cpu().float().eval()
    said = f"an input of shape {tuple(samples.shape)}"
    if layers.has_layer(module):
        raise UserError("the module is a single layer; put it into a torch.nn.Sequential")
    with torch.no_grad():
        try:
            scores = module(samples)  # gives lazy modules their shapes, too
        except Exception as error:
            raise UserError(f"the module does not take {said}: {cause(error)}") from error
        if not isinstance(scores, torch.Tensor):
            raise UserError(f"the module's output is a {type(scores).__name__}; {ONE_TENSOR}")
        module.train()  # as training computes: dropout drops, `if self.training` is taken
        evaluating = {name for name, m in module.named_modules() if not m.training}
        defaults = list(inspect.signature(module.forward).parameters.values())[1:]
        try:
            graph = _Tracer().trace(
                module, {p.name: p.default for p in defaults if p.default is not inspect.Parameter.empty}
            )
        except Exception as error:
            raise UserError(
                f"torch.fx cannot trace the module: {cause(error)}{_where(error)}; what forward does must not "
                "depend on the values of tensors"
            ) from error
        module.eval()  # no statistics are to change
        try:
            shapes = _Shapes(fx.GraphModule(module, graph))
        except SyntaxError as error:
            raise UserError(
                f"torch.fx cannot write the module's forward: {cause(error)}; is a submodule's name a word of Python's?"
            ) from error
        try:
            trained = shapes.run(samples)
        except Exception as error:
            raise UserError(f"the module in training does not take {said}: {cause(error)}") from error
        if not isinstance(trained, torch.Tensor):
            raise UserError(f"the module's output in training is a {type(trained).__name__}; {ONE_TENSOR}")
    return Traced(module, graph, shapes.shapes, shapes.values, evaluating)


def _where(error):
    """The last line outside of PyTorch that led to it."""
    inside = os.path.join(os.path.dirname(torch.__file__), "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((inside, "<")) and f.filename != __file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
