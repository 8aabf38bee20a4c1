"""The warm-up of codecs, in which gradients go as float32: exchange.warmup_epochs, docs/exchange.md."""

import math

from configuration import section

NONE = {"exchange.warmup_epochs": 0}  # settings with which a run has its codecs from the first step on
FLOAT32 = {**NONE, "exchange.codec": "none", "exchange.rules": []}  # and none of them


def epochs(settings):
    """0 without codecs. A mistaken number is as if it were not given."""
    exchange = section(settings, "exchange")
    value, codec = exchange.get("warmup_epochs"), exchange.get("codec") or "none"
    if "none" in (codec, section(exchange, "codec").get("kind")) and not exchange.get("rules"):
        return 0
    return value if type(value) in (int, float) and 0 < value < math.inf else 0


def steps(settings, per_epoch):
    """As the trainer rounds."""
    return math.floor(epochs(settings) * per_epoch + 0.5)


def as_float32(shown):
    """What `lpsgd show --json` says without codecs."""
    tensors = [
        {**t, "codec": "none", "codec_options": "{kind: none}", "wire_bytes": 4 * t["elements"]}
        for t in shown["tensors"]
    ]
    return {**shown, "tensors": tensors, "wire_bytes": 4 * shown["parameters"]}
