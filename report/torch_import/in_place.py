"""Which calls write their result over their input."""

import operator

import torch
from torch.nn import functional

ALWAYS = {torch.relu_, functional.relu_, operator.iadd, operator.imul, operator.itruediv}
ARGUMENT = {  # the number of `inplace`
    functional.relu: 1,
    functional.relu6: 1,
    functional.hardsigmoid: 1,
    functional.hardswish: 1,
    functional.silu: 1,
    functional.dropout: 3,
}


def changed_by(node, module):
    """The node whose result this one changes, or None. `module`: that it calls, if it calls one."""
    return (node.args[0] if node.args else node.kwargs["input"]) if _changes(node, module) else None


def _changes(node, module):
    if node.op == "call_module":
        return getattr(module, "inplace", False)
    if node.op == "call_method":
        return node.target.endswith("_") and not node.target.endswith("__")
    if node.op == "call_function":
        at = ARGUMENT.get(node.target, len(node.args))
        given = len(node.args) > at and node.args[at] is True
        return node.target in ALWAYS or given or node.kwargs.get("inplace") is True
    return False
