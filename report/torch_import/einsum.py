"""torch.einsum, where it is one of attention's two products."""

import re

from . import attention, views
from .moves import settled
from .network import WITHOUT_LAYER
from .views import Probabilities, must

FORM = "([a-z]{3,}),([a-z]{3,})->([a-z]{3,})"


def einsum(to, node, equation, *operands):
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    out = None
    found = re.fullmatch(FORM, str(equation).replace(" ", ""))
    if found is not None and len(operands) == 2:
        first, second, result = found.groups()
        pairs = [(operands[0], first), (operands[1], second)]
        if isinstance(operands[1], Probabilities):
            pairs.reverse()
        product = _output if isinstance(pairs[0][0], Probabilities) else _scores
        out = product(to, node, pairs, result)
    must(out is not None, f"einsum('{equation}') is none of attention's products; {WITHOUT_LAYER}")
    return out


def _scores(to, node, pairs, result):
    """Of queries and keys; or None. Queries' letter is the last but one of the result's."""
    if result[-1] in pairs[0][1]:
        pairs = pairs[::-1]
    (x, first), (y, second) = pairs
    *heads, frame, other = result
    width = "".join(set(first) - set(result))
    wanted_x, wanted_y = [*heads, frame, width], [*heads, width, other]
    if sorted(first) != sorted(wanted_x) or sorted(second) != sorted(wanted_y):
        return None
    return attention.multiply_matrices(to, node, _ordered(x, first, wanted_x), _ordered(y, second, wanted_y))


def _output(to, node, pairs, result):
    """Of probabilities and values; or None."""
    (x, first), (y, second) = pairs
    *heads, frame, other = first
    width = "".join(set(result) - set(first))
    wanted, given = [*heads, other, width], [*heads, frame, width]
    if sorted(second) != sorted(wanted) or sorted(result) != sorted(given):
        return None
    out = attention.multiply_matrices(to, node, x, _ordered(y, second, wanted))
    return settled(to, node, _ordered(out, given, result))


def _ordered(value, letters, wanted):
    view = views.of(value)
    return view.moved(view.numbers.permute([letters.index(letter) for letter in wanted]), "einsum")
