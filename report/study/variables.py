"""Environment variables in a configuration, "${NAME}": their values are no settings, but what a run sends and takes
depends on them."""

import os
import re

from .yaml_file import scalar

NAME = re.compile(r"\$\{([^{}]*)\}")


def named(settings, prefix=""):
    """(key, NAME) of each ${NAME} outside the network, whose own $names are its parameters."""
    if isinstance(settings, str):
        yield from ((prefix, name) for name in NAME.findall(settings))
    items = ()
    if isinstance(settings, dict):
        items = settings.items()
    elif isinstance(settings, list):
        items = enumerate(settings)
    for key, value in items:
        if prefix or key != "network":
            yield from named(value, f"{prefix}.{key}" if prefix else str(key))


def known(env):
    """{name: value} of the environment of every run. `env`: the study's, whose values may differ between jobs."""
    alike = {name: values[0] for name, values in env.items() if len(set(values)) == 1}
    return {**{name: value for name, value in os.environ.items() if name not in env}, **alike}


def expanded(settings, values):
    """With these values, as the program reads them: also as numbers. A text with another variable stays."""
    return {key: value if key == "network" else _expanded(value, values) for key, value in settings.items()}


def _expanded(tree, values):
    if isinstance(tree, dict):
        return {key: _expanded(value, values) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_expanded(value, values) for value in tree]
    if not isinstance(tree, str) or not NAME.search(tree) or not all(name in values for name in NAME.findall(tree)):
        return tree
    return scalar(NAME.sub(lambda match: values[match[1]], tree))
