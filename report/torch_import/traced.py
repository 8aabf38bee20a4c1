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

FACTORIES = ("arange", "eye", "full", "ones", "tensor", "zeros")
FILLED = ("new_full", "new_ones", "new_zeros", torch.full_like, torch.ones_like, torch.zeros_like)
SHAPED = ("expand_as", "reshape_as", "type_as", "view_as")
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
        found = _without_exception()
        return super().to_bool(obj) if found is None else found

    def is_leaf_module(self, m, module_qualified_name):
        return converters.is_known(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m, forward, args, kwargs):
        if m not in self.submodule_paths:  # made in forward, such as torch.nn.Softmax(-1)(x)
            return forward(*args, **kwargs)
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
            read = [name for name in _read(n) if name in self.shapes or holds_tensors(self.values[name])]
            if all(name in self.constants for name in read):
                buffers = frozenset().union(*(self.constants[name].buffers for name in read))
                self.constants[n.name] = Constant(result, buffers)


def _read(node):
    """The names of the nodes whose values it reads, not their shapes alone."""
    names = [one.name for one in node.all_input_nodes]
    if node.target in SHAPED:
        return names[:1]
    return names[1:] if node.target in FILLED else names


def _unpack(proxy):
    """`out, state = lstm(x)`, which torch.fx of PyTorch 1 does not know in the bytecode of Python 3.11."""
    frame = inspect.currentframe().f_back
    for one in dis.get_instructions(frame.f_code):
        if one.offset == frame.f_lasti and one.opname == "UNPACK_SEQUENCE":
            return iter([proxy[i] for i in range(one.argval)])
    return proxy.tracer.iter(proxy)


if sys.version_info >= (3, 11) and torch.__version__.startswith("1."):
    fx.Proxy.__iter__ = _unpack


def _without_exception():
    """Which way the user's code goes on a proxy, such as that of a comparison with a size, where the other
    way raises an exception: an assertion, or `if ...: raise`. The samples raised none. None elsewhere."""
    frame = inspect.currentframe()
    while frame.f_code.co_filename in (__file__, inspect.getfile(fx.Proxy)):
        frame = frame.f_back
    following = [one for one in dis.get_instructions(frame.f_code) if one.offset >= frame.f_lasti]
    following = [one for one in following if one.opname not in ("TO_BOOL", "COMPARE_OP", "NOT_TAKEN")]
    jump = following[0].opname
    if "JUMP" not in jump or not jump.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    is_jump = jump.endswith("IF_TRUE")
    if _raises(following[1:]):
        return is_jump
    if _raises([one for one in following if one.offset >= following[0].argval]):
        return not is_jump
    return None


def _raises(instructions):
    """Whether they raise an exception before anything else is decided."""
    for one in instructions:
        if one.opname == "RAISE_VARARGS":
            return True
        if one.opname == "FOR_ITER" or "JUMP" in one.opname or "RETURN" in one.opname:
            return False
    return False


@contextlib.contextmanager
def _traced_factories():
    """torch.fx knows no torch.arange(x.size(1)): the functions that make tensors of sizes alone."""

    def wrapped(function):
        def call(*args, **keywords):
            proxies, given = [], (args, keywords)
            fx.node.map_aggregate(given, lambda one: isinstance(one, fx.Proxy) and proxies.append(one))
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
            f"torch.fx cannot trace the module: {cause(error)}{_where(error)}; "
            "it knows neither the values nor the sizes of tensors"
        ) from error


def _shapes(module, graph):
    try:
        return _Shapes(fx.GraphModule(module, graph))
    except SyntaxError as error:
        hint = "is a submodule's name a word of Python's?"
        raise UserError(f"torch.fx cannot write the module's forward: {cause(error)}; {hint}") from error


def _where(error):
    """The last line outside of PyTorch that led to it."""
    inside = os.path.join(os.path.dirname(torch.__file__), "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((inside, "<")) and f.filename != __file__]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
