"""STUDY.yaml: what it may hold, read into a Study. docs/study.md describes it."""

import os
from dataclasses import dataclass, field

from . import labels
from .measures import TARGETS
from .yaml_file import Node, StudyError, did_you_mean, flow, option, read

KEYS = ("name", "config", "axes", "exclude", "set", "target", "launcher", "jobs", "timed")
LAUNCHER = ("mpirun", "hosts", "options", "env")
# Short names of axes, and the key of the configuration that each sets. The last ones are no keys.
AXES = {
    "codec": "exchange.codec",
    "transport": "exchange.transport",
    "collective": "exchange.collective",
    "link": "exchange.link",
    "sync": "sync",
    "seed": "train.seed",
    "network": None,
    "config": None,
    "ranks": None,
}
SECTIONS = ("network", "data", "train", "optimizer", "schedule", "exchange", "sync", "checkpoint", "metrics")


@dataclass
class Choice:
    """One value of an axis."""

    label: str
    where: str  # "FILE:LINE:COLUMN"
    config: str | None = None
    ranks: int | None = None
    sets: dict = field(default_factory=dict)  # key of the configuration -> value
    value: object = None  # as written, for exclude


@dataclass
class Axis:
    name: str
    choices: list


@dataclass
class Study:
    path: str
    name: str
    config: str | None
    axes: list
    excludes: list  # of {axis: [labels]}
    only: dict  # of the command line, {axis: [labels]}: the runs that are asked for
    sets: dict  # those of the command line last
    given: set  # keys of the command line
    target: tuple | None  # (metric, value)
    mpirun: str | None  # None: the one of the MPI library that the program is linked with
    hosts: list
    options: list
    env: dict  # name -> values, one for each of the jobs; a single value is for all
    jobs: int
    is_timed: bool  # whether the runs have the machine to themselves, so that their seconds count
    where: dict  # of keys, for errors found later

    def relative(self, path):
        """From the study's folder: the same wherever the study is started."""
        return os.path.relpath(os.path.abspath(path), os.path.dirname(os.path.abspath(self.path)))


def load(path, sets=(), only=()):
    """The study of a file. `sets` and `only`: words of the options --set and --only, KEY=VALUE and AXIS=VALUES."""
    root = read(path)
    if not root.is_map():
        root.fail("", f"expected a map of {', '.join(KEYS)}")
    top = root.value
    for key, node in top.items():
        if key not in KEYS:
            node.fail(key, f"unknown key{did_you_mean(key, KEYS)}; allowed here: {', '.join(KEYS)}")
    folder = os.path.dirname(path)
    config = _config(top["config"], "config", folder) if "config" in top else None
    axes = _axes(top.get("axes"), folder)
    if config is None and not (
        axes
        and all(c.config for a in axes if a.name in ("config", "network") for c in a.choices)
        and any(a.name in ("config", "network") for a in axes)
    ):
        root.fail("config", "is missing; give the configuration that the runs share, or an axis 'config'")
    launcher = _map(top.get("launcher"), "launcher", LAUNCHER)
    given = _given(sets, axes)
    return Study(
        path=path,
        name=_word(top["name"], "name") if "name" in top else os.path.splitext(os.path.basename(path))[0],
        config=config,
        axes=axes,
        excludes=[_exclude(item, axes) for item in _list(top.get("exclude"), "exclude")],
        only=_only(only, axes),
        sets={k: v for k, v in _sets(top.get("set"), "set").items() if k not in given} | given,
        given=set(given),
        target=_target(top.get("target")),
        mpirun=_word(launcher["mpirun"], "launcher.mpirun") if "mpirun" in launcher else None,
        hosts=_words(launcher.get("hosts"), "launcher.hosts"),
        options=_words(launcher.get("options"), "launcher.options"),
        env=_env(launcher.get("env")),
        jobs=_count(top["jobs"], "jobs", 1024) if "jobs" in top else 1,
        is_timed=_flag(top["timed"], "timed") if "timed" in top else True,
        where={
            key: node.where
            for key, node in [*top.items(), *((f"launcher.{k}", v) for k, v in launcher.items())]
        },
    )


def _list(node, key):
    if node is None:
        return []
    if not node.is_list():
        node.fail(key, "expected a list")
    return node.value


def _map(node, key, allowed):
    if node is None:
        return {}
    if not node.is_map():
        node.fail(key, f"expected a map of {', '.join(allowed)}")
    for name, value in node.value.items():
        if name not in allowed:
            value.fail(
                f"{key}.{name}",
                f"unknown key{did_you_mean(name, allowed)}; allowed here: {', '.join(allowed)}",
            )
    return node.value


def _word(node, key):
    if not isinstance(node.value, str) or not node.value.strip():
        node.fail(key, "expected a word")
    return node.value


def _words(node, key):
    """A list of words, or one line that is split at spaces."""
    if node is None:
        return []
    if isinstance(node.value, str):
        return node.value.split()
    if not node.is_list() or any(item.is_map() or item.is_list() for item in node.value):
        node.fail(key, "expected a list of words")
    return [str(item.value) for item in node.value]


def _env(node):
    """Variables of the runs' environment."""
    if node is None:
        return {}
    if not node.is_map():
        node.fail(
            "launcher.env",
            "expected a map of names and values, such as {CUDA_VISIBLE_DEVICES: ['0,1', '2,3']}",
        )
    out = {}
    for name, value in node.value.items():
        key = f"launcher.env.{name}"
        if not name or "=" in name or "\0" in name:
            value.fail(key, "not a name of an environment variable")
        items = value.value if value.is_list() else [value]
        if not items or any(item.is_map() or item.is_list() or item.value is None for item in items):
            value.fail(key, "expected a word, or a list with a word for each job")
        out[name] = [item.value if isinstance(item.value, str) else flow(item.value) for item in items]
    return out


def _count(node, key, most):
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not 1 <= node.value <= most:
        node.fail(key, f"expected an integer from 1 to {most}, not {flow(node.data())}")
    return node.value


def _flag(node, key):
    if not isinstance(node.value, bool):
        node.fail(key, f"expected true or false, not {flow(node.data())}")
    return node.value


def _config(node, key, folder):
    path = os.path.normpath(os.path.join(folder, _word(node, key)))
    if not os.path.isfile(path):
        node.fail(key, f"no file {path}")
    return path


def _sets(node, key):
    if node is None:
        return {}
    if not node.is_map():
        node.fail(key, "expected a map of configuration keys and values, such as {train.epochs: 10}")
    for name, value in node.value.items():
        _check_section(name, value, f"{key}.{name}")
    return {name: value.data() for name, value in node.value.items()}


def _check_section(name, node, key):
    section = name.split(".")[0]
    if section not in SECTIONS:
        node.fail(
            key,
            f"unknown key{did_you_mean(section, SECTIONS)}; "
            f"expected a key of the configuration: {', '.join(SECTIONS)}",
        )


def _given(words, axes):
    """Keys and values of --set. What every run's axes set anyway would be lost."""
    sets = {}
    for word in words:
        name, node = option("--set", word, "KEY=VALUE")
        _check_section(name, node, "")
        for axis in axes:
            if all(any(f"{name}.".startswith(f"{key}.") for key in keys_of(c)) for c in axis.choices):
                node.fail("", f"has no effect: the axis '{axis.name}' sets it for each run")
        if name in sets:
            node.fail("", "is given twice")
        sets[name] = node.data()
    return sets


def _target(node):
    if node is None:
        return None
    if not node.is_map() or len(node.value) != 1:
        node.fail("target", "expected one metric and its value, such as {val_top1: 90}")
    ((metric, value),) = node.value.items()
    if metric not in TARGETS:
        value.fail(
            f"target.{metric}",
            f"unknown metric{did_you_mean(metric, TARGETS)}; allowed: {', '.join(TARGETS)}",
        )
    if isinstance(value.value, bool) or not isinstance(value.value, (int, float)):
        value.fail(f"target.{metric}", f"expected a number, not {flow(value.data())}")
    return metric, float(value.value)


def _axes(node, folder):
    if node is None:
        return []
    if not node.is_map():
        node.fail("axes", f"expected a map of axes: {', '.join(AXES)}, or keys of the configuration")
    axes = []
    for name, values in node.value.items():
        if name not in AXES and ("." not in name or name.split(".")[0] not in SECTIONS):
            values.fail(
                f"axes.{name}",
                f"unknown axis{did_you_mean(name, AXES)}; allowed: {', '.join(AXES)}, "
                "or a key of the configuration such as schedule.lr",
            )
        items = values.value if values.is_list() else [values]
        if not items:
            values.fail(f"axes.{name}", "expected at least one value")
        choices = [_choice(name, item, folder) for item in items]
        seen = set()
        for choice in choices:
            if choice.label in seen:
                raise StudyError(
                    f"{choice.where}: axes.{name}: '{choice.label}' is there twice; "
                    "give one of them another name: {name: ..., value: ...}"
                )
            seen.add(choice.label)
        axes.append(Axis(name, choices))
    if sum(axis.name in ("config", "network") and any(c.config for c in axis.choices) for axis in axes) > 1:
        node.fail("axes", "'config' and 'network' both give configurations; leave one of them out")
    return axes


def _choice(axis, node, folder):
    """A scalar or map, or {name, value} or {name, set}."""
    key = f"axes.{axis}"
    name, value, sets = None, node, None
    if node.is_map() and "name" in node.value and set(node.value) <= {"name", "value", "set"}:
        name = str(node.value["name"].value)
        if not name.strip() or node.value["name"].is_map() or node.value["name"].is_list():
            node.value["name"].fail(f"{key}.name", "expected a word")
        value, sets = node.value.get("value"), node.value.get("set")
        if value is None and sets is None:
            node.fail(key, f"'{name}' has neither a value nor a set")
    choice = Choice(label="", where=node.where, sets=_sets(sets, f"{key}.set"))
    if value is not None:
        choice.value = value.data()
        _assign(choice, axis, value, key, folder)
    choice.label = name or labels.of_value(axis, choice.value)
    return choice


def _assign(choice, axis, node, key, folder):
    if axis == "ranks":
        choice.ranks = _count(node, key, 100_000)
    elif axis in ("config", "network"):
        if axis == "network" and node.is_map():
            choice.sets.setdefault("network", node.data())
            return
        path = _config(node, key, folder)
        root = read(path)
        is_network = root.is_map() and "layers" in root.value and "network" not in root.value
        if is_network and axis == "network":
            choice.sets.setdefault("network", os.path.abspath(path))
        else:
            choice.config = path
    else:
        value = _link(node, key) if axis == "link" else choice.value
        if axis == "sync" and isinstance(value, str):
            value = {"kind": value}
        target = AXES.get(axis) or axis
        if target in choice.sets:
            node.fail(key, f"both value and set give {target}")
        choice.sets[target] = value


def _link(node, key):
    """'1Gbit,50us' and 'none' are short for the map."""
    if node.is_map():
        return node.data()
    if node.value is None or node.value == "none":
        return {}
    parts = str(node.value).split(",")
    if len(parts) > 2:
        node.fail(
            key, "expected bandwidth and latency, such as '1Gbit,50us'; {bandwidth, latency, burst}; or none"
        )
    return dict(zip(("bandwidth", "latency"), (part.strip() for part in parts)))


def keys_of(choice):
    """Of the configuration: those that it sets."""
    return [*choice.sets, *(["exchange.ranks"] if choice.ranks else [])]


def _only(words, axes):
    """{axis: [labels]} of --only; several for an axis are alternatives."""
    by_name = {axis.name: axis for axis in axes}
    chosen = {}
    for word in words:
        name, node = option("--only", word, "AXIS=VALUES")
        if name not in by_name:
            there = ", ".join(by_name) or "none"
            node.fail("", f"there is no axis '{name}'{did_you_mean(name, by_name)}; there are: {there}")
        chosen.setdefault(name, []).extend(_all_matching(by_name[name], node, ""))
    return chosen


def _exclude(node, axes):
    """Runs with one of these values on each of these axes are left out."""
    if not node.is_map() or not node.value:
        node.fail("exclude", "expected a map of axes and values, such as {codec: none, ranks: [8, 16]}")
    by_name = {axis.name: axis for axis in axes}
    rule = {}
    for name, values in node.value.items():
        if name not in by_name:
            values.fail(
                f"exclude.{name}",
                f"no such axis{did_you_mean(name, by_name)}; there are: {', '.join(by_name)}",
            )
        rule[name] = _all_matching(by_name[name], values, f"exclude.{name}")
    return rule


def _all_matching(axis, node, key):
    return [_matching(axis, item, key) for item in (node.value if node.is_list() else [node])]


def _matching(axis, node: Node, key):
    data = node.data()
    for choice in axis.choices:
        # 1 and true are equal in Python.
        same = type(choice.value) is type(data) and choice.value == data
        if choice.label == str(data) or (choice.value is not None and same):
            return choice.label
    known = [choice.label for choice in axis.choices]
    node.fail(
        key,
        f"the axis has no '{flow(data)}'{did_you_mean(data, known)}; it has: {', '.join(known)}",
    )
