"""The codecs that `lpsgd predict CONFIG` compares: --codecs, and the configured one."""

import functools
import re

import program

from costmodel.errors import CostModelError
from costmodel.networks import CODECS


@functools.lru_cache(maxsize=None)
def kinds():
    """That the program's configurations know."""
    known = program.ask("help", "--schema")["definitions"]["codec"]["anyOf"]
    return next(choice["enum"] for choice in known if "enum" in choice)


def codecs_of(text):
    """Pairs of a name and a codec as in the configuration, of none,qsgd4,fp16,'{kind: topk, density: 0.01}'."""
    found = []
    for word in re.findall(r"\{[^{}]*\}|[^,{}]+", text):
        word = word.strip()
        if word in CODECS:
            found.append((word, CODECS[word].config))
        elif word.startswith("{"):
            found.append((word, word))
        elif word in kinds():
            found.append((word, word))
        elif word:
            names = ", ".join(dict.fromkeys([*CODECS, *kinds()]))
            raise CostModelError(
                f"--codecs: unknown codec '{word}'; expected {names}, or a codec as in the configuration, such as "
                f"'{{kind: topk, density: 0.01}}'"
            )
    return found


@functools.lru_cache(maxsize=None)
def usual_options(kind):
    """Of a kind for which the configuration gives none, as `lpsgd show` prints them."""
    network = f"{program.ROOT}/configs/networks/logistic.yaml"
    shown = program.show(network, (f"exchange.codec={kind}", "exchange.min_elements=0"))
    return shown["tensors"][0]["codec_options"]


def short(codec):
    """qsgd4, or the kind where it has its usual options; for what has no name, its options less the usual ones."""
    options = codec.strip("{}").split(", ")
    kind = options[0].removeprefix("kind: ")
    left_out = ("norm", "levels", "type", "rounding", "error_feedback")
    usual = [option for option in usual_options(kind).strip("{}").split(", ") if option.split(":")[0] in left_out]
    text = "{" + ", ".join(option for option in options if option not in usual) + "}"
    otherwise = kind if codec == usual_options(kind) else text
    return next((name for name, known in CODECS.items() if known.config == text), otherwise)


def settings_for(name, codec):
    """--set values that give the whole network this codec; nothing for the configured one."""
    if codec is None:
        return ()
    more = ("exchange.min_elements=0",) if name in CODECS and CODECS[name].all_tensors else ()
    return (f"exchange.codec={codec}", "exchange.rules=[]", *more)
