"""A module as a graph of calls (torch.fx), with the value or the shape of each call's result."""

import contextlib
import dis
import inspect
import os
import sys
import traceback
from dataclasses import dataclass

import torch
from errors import UserError
from torch import fx

from . import converters
from .source import cause
from .views import BATCH, Constant

FACTORIES = ("arange", "eye", "full", "ones", "zeros")
ONE_TENSOR = "it must be one tensor, the class scores"


@dataclass
class Traced:
    module: torch.nn.Module
    graph: fx.Graph
    shapes: dict  # of each node that is a tensor, with the batch
    values: dict  # of each node that is none
    constants: dict  # those of the tensors that depend neither on the input nor on parameters
    evaluating: set  # names of the modules that stay in evaluation in training

    def called_by(self, node):
        """The module that the node calls, or None."""
        return self.module.get_submodule(node.target) if node.op == "call_module" else None


class _Tracer(fx.Tracer):
    """Notes in which module each call stands, for the names of layers."""

    def __init__(self, traces_buffers):
        super().__init__()
        self._inside = [""]
        self.proxy_buffer_attributes = traces_buffers

    def to_bool(self, obj):
        return _is_asserted() or super().to_bool(obj)

    def is_leaf_module(self, m, module_qualified_name):
        return converters.is_known(m) or super().is_leaf_module(m, module_qualified_name)

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


def holds_tensors(value):
    return isinstance(value, (tuple, list)) and any(isinstance(one, torch.Tensor) for one in value)


class _Shapes(fx.Interpreter):
    def __init__(self, module):
        super().__init__(module)
        self.shapes, self.values, self.constants = {}, {}, {}

    def run_node(self, n):
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.shapes[n.name] = tuple(result.shape)
            self._note_constant(n, result)
        else:
            self.values[n.name] = result
        return result

    def _note_constant(self, n, result):
        if n.op == "get_attr" and not isinstance(result, torch.nn.Parameter):
            self.constants[n.name] = Constant(result, frozenset([n.target]))
        elif n.op in ("call_function", "call_method"):
            read = [one.name for one in n.all_input_nodes if one.name in self.shapes or holds_tensors(self.values[one.name])]
            if all(name in self.constants for name in read):
                buffers = frozenset().union(*(self.constants[name].buffers for name in read))
                self.constants[n.name] = Constant(result, buffers)


def _unpack(proxy):
    """`out, state = lstm(x)`, which torch.fx of PyTorch 1 does not understand in the bytecode of Python 3.11."""
    frame = inspect.currentframe().f_back
    for one in dis.get_instructions(frame.f_code):
        if one.offset == frame.f_lasti and one.opname == "UNPACK_SEQUENCE":
            return iter([proxy[i] for i in range(one.argval)])
    return proxy.tracer.iter(proxy)


if sys.version_info >= (3, 11) and torch.__version__.startswith("1."):
    fx.Proxy.__iter__ = _unpack


def _is_asserted():
    """Whether the user's code asserts what torch.fx asks the value of, such as a size of the input. It held for a sample."""
    frame = inspect.currentframe()
    while frame.f_code.co_filename in (__file__, inspect.getfile(fx.Proxy)):
        frame = frame.f_back
    following = [one for one in dis.get_instructions(frame.f_code) if one.offset >= frame.f_lasti]
    words = [one.opname + one.argrepr for one in following if one.opname not in ("TO_BOOL", "COMPARE_OP", "NOT_TAKEN")]
    return len(words) > 1 and "IF_TRUE" in words[0] and "ASSERT" in words[1].upper()


@contextlib.contextmanager
def _traced_factories():
    """torch.fx knows no torch.arange(x.size(1)): the functions that make tensors of sizes alone."""

    def wrapped(function):
        def call(*args, **keywords):
            proxies = []
            fx.node.map_aggregate((args, keywords), lambda one: isinstance(one, fx.Proxy) and proxies.append(one))
            if not proxies:
                return function(*args, **keywords)
            return proxies[0].tracer.create_proxy("call_function", function, args, keywords)

        return call

    kept = {name: getattr(torch, name) for name in FACTORIES}
    try:
        for name, function in kept.items():
            setattr(torch, name, wrapped(function))
        yield
    finally:
        for name, function in kept.items():
            setattr(torch, name, function)


def trace(module, samples):
    """`samples`: (BATCH, ...), in PyTorch's order."""
    module = module.cpu().float().eval()
    if converters.is_known(module):
        raise UserError("the module is a single layer; put it into a torch.nn.Sequential")
    with torch.no_grad():
        _run(module, samples)  # gives lazy modules their shapes, too
        module.train()  # as training computes: dropout drops, `if self.training` is taken
        evaluating = {name for name, m in module.named_modules() if not m.training}
        graph = _graph(module)
        module.eval()  # no statistics are to change
        shapes = _shapes(module, graph)
        _run(shapes.run, samples, " in training")
    return Traced(module, graph, shapes.shapes, shapes.values, shapes.constants, evaluating)


def _run(compute, samples, when=""):
    try:
        scores = compute(samples)
    except Exception as error:
        said = f"an input of shape {tuple(samples.shape)}"
        raise UserError(f"the module{when} does not take {said}: {cause(error)}") from error
    if not isinstance(scores, torch.Tensor):
        raise UserError(f"the module's output{when} is a {type(scores).__name__}; {ONE_TENSOR}")


def _graph(module):
    arguments = list(inspect.signature(module.forward).parameters.values())[1:]
    defaults = {a.name: a.default for a in arguments if a.default is not inspect.Parameter.empty}
    try:
        with _traced_factories():
            try:  # for mask[:n, :n], where n is a size of the input
                return _Tracer(traces_buffers=True).trace(module, defaults)
            except Exception:  # such as where a buffer's values decide what is computed
                return _Tracer(traces_buffers=False).trace(module, defaults)
    except Exception as error:
        raise UserError(
            f"torch.fx cannot trace the module: {cause(error)}{_where(error)}; what forward does must not "
            "depend on the values of tensors"
        ) from error


def _shapes(module, graph):
    try:
        return _Shapes(fx.GraphModule(module, graph))
    except SyntaxError as error:
        raise UserError(
            f"torch.fx cannot write the module's forward: {cause(error)}; is a submodule's name a word of Python's?"
        ) from error


def _where(error):
    """The last line outside of PyTorch that led to it."""
    inside = os.path.join(os.path.dirname(torch.__file__), "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((inside, "<")) and f.filename != __file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
