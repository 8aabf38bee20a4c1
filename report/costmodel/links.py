"""Links in words: --link, and section exchange.link of a configuration."""

import re

from costmodel import pipeline
from costmodel.errors import CostModelError

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
# Of exchange.link: comm/link.cc.
BANDWIDTHS = {"Gbit": 1e9, "Mbit": 1e6, "kbit": 1e3, "bit": 1.0}
LATENCIES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
BURSTS = {"MB": 1e6, "kB": 1e3, "B": 1.0}


def link_of(text, option="--link"):
    """10Gbit,50us or 10Gbit,50us,64kB (the third: bytes that leave at once after a pause; kB and MB are of 1000, as in
    exchange.link)."""
    match = re.fullmatch(
        NUMBER + r" *([kmgt]?)bit *, *" + NUMBER + r" *(ns|us|ms|s)(?: *, *" + NUMBER + r" *([km]?)b)?",
        text.lower(),
    )
    if not match:
        raise CostModelError(f"{option}: '{text}' is not a bandwidth and a latency, such as 10Gbit,50us")
    bandwidth = float(match[1]) * UNITS[match[2]]
    latency = float(match[3]) * SECONDS[match[4]]
    burst = float(match[5] or 0) * UNITS[match[6] or ""]
    if not (1e3 <= bandwidth <= 1e15 and latency <= 100):
        raise CostModelError(
            f"{option}: '{text}' is out of range: 1 kbit to 1000 Tbit a second, at most 100 s"
        )
    return pipeline.Link(bandwidth, latency, burst)


def emulated(exchange, where):
    """The link that section `exchange` has the transport emulate, or None."""
    link = exchange.get("link")
    if not isinstance(link, dict):
        return None
    bandwidth = quantity(link, "bandwidth", BANDWIDTHS, where)
    latency = quantity(link, "latency", LATENCIES, where)
    if not bandwidth:
        return pipeline.Link(pipeline.NO_LINK.bandwidth, latency) if latency else None
    burst = quantity(link, "burst", BURSTS, where) or max(65536.0, bandwidth / 8 * 2.1e-3)
    return pipeline.Link(bandwidth, latency, burst)


def quantity(link, key, units, where):
    """0 where the key is left out."""
    value = link.get(key)
    if value is None:
        return 0.0
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) *([A-Za-z]+)", str(value))
    try:
        return float(match[1]) * units[match[2]]
    except (TypeError, ValueError, KeyError):
        raise CostModelError(
            f"{where}: exchange.link.{key}: '{value}' is not a number and a unit, of {', '.join(units)}"
        ) from None
