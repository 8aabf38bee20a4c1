"""Short names of an axis' values, in the words of the tables and figures."""

import os
import re

import words

from .yaml_file import flow


def of_value(axis, value):
    if axis in ("config", "network"):
        return (
            os.path.splitext(os.path.basename(str(value)))[0]
            if not isinstance(value, dict)
            else str(value.get("name", "network"))
        )
    if axis == "codec":
        return words.codec_text(value)
    if axis == "link":
        return of_link(value)
    if axis == "sync" and isinstance(value, dict):
        return words.sync_text(value)
    return value if isinstance(value, str) else flow(value)


def of_link(value):
    if not value or value == "none":
        return "none"
    if isinstance(value, dict):
        return ", ".join(str(value[key]) for key in ("bandwidth", "latency", "burst") if key in value)
    return str(value)


def of_choice(axis, label):
    """With the axis' name where the value alone says nothing: "seed 1", "lr 0.1"."""
    if axis == "ranks":
        return words.counted(label, "rank")
    if axis == "link" and label == "none":
        return "no link"
    if axis in ("config", "network", "codec", "transport", "collective", "link", "sync"):
        return label
    return f"{axis.split('.')[-1]} {label}"


def slug(text, most=80):
    text = text.replace("*", "_star ")  # 1bitSGD and 1bitSGD* differ in it alone
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[:most].rstrip("_.") or "run"
