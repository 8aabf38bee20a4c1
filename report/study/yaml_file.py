"""A YAML file as values that remember their line and column, so that an error can point at them.

Scalars are read as YAML 1.2 has them, as the program does: 1e-3 is a number, `no` is a word.
"""

import difflib
import json
import re

import files
import yaml
from errors import UserError

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
MAX_DEPTH = 64

INTEGER = re.compile(r"[-+]?[0-9]+\Z")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
PLAIN = re.compile(r"[A-Za-z_./][\w./ -]*\Z", re.ASCII)
WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}


class StudyError(UserError):
    """Something that is refused before anything starts; the message is one line."""


class Node:
    """A value of the file: `value` is a scalar, a list of Nodes, or a dict of str to Node."""

    def __init__(self, value, where, is_plain=True):
        self.value = value
        self.where = where  # "FILE:LINE:COLUMN"
        self.is_plain = is_plain

    def fail(self, key, text):
        raise StudyError(f"{self.where}: {key + ': ' if key else ''}{text}")

    def is_map(self):
        return isinstance(self.value, dict)

    def is_list(self):
        return isinstance(self.value, list)

    def data(self):
        """Without positions."""
        if self.is_map():
            return {key: node.data() for key, node in self.value.items()}
        if self.is_list():
            return [node.data() for node in self.value]
        return self.value


def read(path):
    """The file's root. Raises UserError."""
    return parse(files.read_text(path, most=MAX_BYTES), path)


def option(name, word, form):
    """(key, Node) of an option's word, which has the form KEY=VALUE."""
    key, equals, text = word.partition("=")
    where = f"{name} {word}"
    if not key or not equals:
        raise StudyError(f"{where}: expected {name} {form}")
    return key, parse(text, where, is_file=False) if text.strip() else Node(None, where)


def parse(text, path, is_file=True):
    """Its root; `where` of an option's values has no line and column."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}:{mark.column + 1}" if mark and is_file else ""
        raise StudyError(f"{path}{at}: not YAML: {files.yaml_problem(error)}") from None
    except RecursionError:
        raise StudyError(f"{path}: nested too deeply; at most {MAX_DEPTH} levels") from None
    if node is None:
        raise StudyError(f"{path}: is empty")
    return Builder(path, is_file).build(node, 0)


class Builder:
    def __init__(self, path, is_file):
        self.path = path
        self.is_file = is_file
        self.count = 0

    def build(self, node, depth):
        at = f":{node.start_mark.line + 1}:{node.start_mark.column + 1}" if self.is_file else ""
        where = self.path + at
        self.count += 1
        if self.count > MAX_VALUES:
            raise StudyError(f"{where}: more than {MAX_VALUES} values, aliases counted each time")
        if depth > MAX_DEPTH:
            raise StudyError(f"{where}: nested too deeply; at most {MAX_DEPTH} levels")
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(item, depth + 1) for item in node.value], where)
        if isinstance(node, yaml.MappingNode):
            entries = {}
            for key_node, value in node.value:
                key = self.build(key_node, depth + 1)
                if isinstance(key_node, yaml.ScalarNode):
                    if key_node.value in entries:
                        key.fail(key_node.value, "given twice")
                    entries[key_node.value] = self.build(value, depth + 1)
                else:
                    key.fail("", "a key must be a word")
            return Node(entries, where)
        is_plain = node.style is None
        return Node(scalar(node.value) if is_plain else node.value, where, is_plain)


def scalar(text):
    if text.lower() in WORDS and (text == text.lower() or text == text.capitalize() or text == text.upper()):
        return WORDS[text.lower()]
    if INTEGER.match(text) and len(text) <= 30:
        return int(text)
    if NUMBER.match(text):
        return float(text)
    return text


def flow(value):
    """The value as YAML on one line, as a person would write it for --set."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow_key(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, str):
        is_plain = PLAIN.match(value) and not value.endswith(" ") and isinstance(scalar(value), str)
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def flow_key(key):
    """A number, such as an epoch, stands without quotes as in the file."""
    key = str(key)
    return key if re.match(r"[\w.-]+\Z", key, re.ASCII) else json.dumps(key, ensure_ascii=False)


def did_you_mean(word, allowed):
    near = difflib.get_close_matches(str(word), [str(a) for a in allowed], n=1, cutoff=0.6)
    return f", did you mean '{near[0]}'?" if near else ""
