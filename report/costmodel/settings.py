"""A configuration as the program reads it: with --set, and with environment variables in quoted strings."""

import os
import re

import files
import program
import yaml

from costmodel.errors import CostModelError

# What the cost model reads itself: `lpsgd show` does without some of their variables, and takes defaults.
READ = (
    "data.dataset",
    "data.train_samples",
    "train.batch_size",
    "train.micro_batches",
    "train.epochs",
    "train.device",
    "train.threads",
    "train.compute",
    "train.recompute",
    "schedule.decay",
    "exchange.collective",
    "exchange.ranks_per_block",
    "exchange.transport",
    "exchange.overlap",
    "exchange.device_pointers",
    "sync",
)
VARIABLE = re.compile(r"\$\{([^}]*)\}")


def read(path, overrides=()):
    """Its sections as a map; the network may be a path."""
    files.read_yaml(path)
    program.show(path, tuple(overrides))  # checks all keys and values
    loader = yaml.SafeLoader(files.read_text(path))
    root = loader.get_single_node()
    names = [key for key, _ in entries(root)]
    if "layers" in names and "network" not in names:
        root.value = []  # a network file: the sections have their defaults
    for override in overrides:
        key, _, text = override.partition("=")
        if key.split(".")[0] != "network":  # of which only the program reads more than the name
            put(root, key.split("."), node_of(text))
    for key, node in entries(root):
        if key != "network":  # its $names are parameters
            expand(loader, node, key, path)
    return loader.construct_document(root)


def node_of(text):
    """Of an option's value."""
    node = yaml.SafeLoader(text).get_single_node()
    node = node or yaml.ScalarNode("tag:yaml.org,2002:null", "")
    node.start_mark = None  # of no file
    return node


def entries(node):
    """Pairs of a key and a node."""
    return [(key.value, value) for key, value in node.value] if isinstance(node, yaml.MappingNode) else []


def put(node, keys, value):
    """At a path of keys, and of positions in lists. What is no map on the way becomes one, as the program has it."""
    if isinstance(node, yaml.SequenceNode):
        at = int(keys[0])
        if len(keys) == 1:
            node.value[at] = value
        else:
            node.value[at] = put(node.value[at], keys[1:], value)
        return node
    if not isinstance(node, yaml.MappingNode):
        node = yaml.MappingNode("tag:yaml.org,2002:map", [])
    new = yaml.ScalarNode("tag:yaml.org,2002:str", keys[0])
    old = next((i for i, (key, _) in enumerate(node.value) if key.value == keys[0]), len(node.value))
    if len(keys) > 1:
        value = put(node.value[old][1] if old < len(node.value) else None, keys[1:], value)
    node.value[old : old + 1] = [(new, value)]
    return node


def expand(loader, node, key, path):
    """Replaces variables that are set. CostModelError where one is not, of a key that is read here."""
    for name, inner in entries(node):
        expand(loader, inner, f"{key}.{name}", path)
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            expand(loader, inner, f"{key}.{number}", path)
    if not isinstance(node, yaml.ScalarNode) or node.style is None or "${" not in node.value:
        return
    unset = [name for name in VARIABLE.findall(node.value) if name not in os.environ]
    if not unset:
        node.value = VARIABLE.sub(lambda match: os.environ[match[1]], node.value)
        node.tag, node.style = loader.resolve(yaml.ScalarNode, node.value, (True, False)), None
    elif any(key == one or key.startswith(one + ".") for one in READ):
        where = f"{path}:{node.start_mark.line + 1}" if node.start_mark else "--set"
        raise CostModelError(f"{where}: {key}: environment variable {unset[0]} is not set")
