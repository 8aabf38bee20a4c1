"""A module as a graph of calls (torch.fx), with the value or the shape of each call's result."""

import copy
import os
import traceback
from dataclasses import dataclass

import torch
from errors import UserError
from torch import fx

BATCH = 2  # samples of the batch that the shapes are found with
ONE_TENSOR = "it must be one tensor, the class scores"


@dataclass
class Traced:
    module: torch.nn.Module
    graph: fx.Graph
    shapes: dict  # of each node that is a tensor, with the batch
    values: dict  # of each node that is none


class _Tracer(fx.Tracer):
    """Notes in which module each call stands, for the names of layers."""

    def __init__(self):
        super().__init__()
        self._inside = [""]

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


def trace(module, samples):
    """`samples`: (BATCH, ...), in PyTorch's order."""
    module = module.cpu().float().eval()
    said = tuple(samples.shape)
    with torch.no_grad():
        try:
            scores = module(samples)  # gives lazy modules their shapes, too
        except Exception as error:
            raise UserError(f"the module does not take an input of shape {said}: {_line(error)}") from error
        if not isinstance(scores, torch.Tensor):
            raise UserError(f"the module's output is a {type(scores).__name__}; {ONE_TENSOR}")
        module.train()  # as training computes: dropout drops, `if self.training` is taken
        try:
            graph = _Tracer().trace(module)
        except Exception as error:
            raise UserError(
                f"torch.fx cannot trace the module: {_line(error)}{_where(error)}; what forward does must not "
                "depend on the values of tensors"
            ) from error
        copied = fx.GraphModule(copy.deepcopy(module), copy.deepcopy(graph)).eval()
        shapes = _Shapes(copied)
        try:
            trained = shapes.run(samples)
        except Exception as error:
            raise UserError(
                f"the module in training does not take an input of shape {said}: {_line(error)}"
            ) from error
        if not isinstance(trained, torch.Tensor):
            raise UserError(f"the module's output in training is a {type(trained).__name__}; {ONE_TENSOR}")
    module.eval()
    return Traced(module, graph, shapes.shapes, shapes.values)


def _where(error):
    """The last line outside of PyTorch that led to it."""
    inside = os.path.join(os.path.dirname(torch.__file__), "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((inside, "<")) and f.filename != __file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _line(error):
    """The first sentence of its message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip().split('. ')[0]}" if lines else type(error).__name__
