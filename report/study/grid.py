"""The runs of a study: every combination of its axes' values but the excluded ones, in the order of the
file."""

import copy
import functools
import hashlib
import itertools
import json
import math
import os
from dataclasses import dataclass

import configuration
from configuration import section
from errors import UserError

from . import labels, variables
from .yaml_file import StudyError, flow, read

MAX_RUNS = 20_000
# Networks whose files had the parameter `outputs` while all files still said `classes` in a number.
HAD_OUTPUTS = ("resnet20", "densenet40_12", "wideresnet28_12")


@dataclass
class GridRun:
    name: str  # of its folder: readable, then the digest's first digits
    label: str  # the values of the axes that have several
    choices: dict  # axis -> label
    values: dict  # axis -> the number or word in the tables
    config: str
    sets: dict  # key -> value, in the order in which they are given to the program
    ranks: int
    written: dict  # the configuration with all of it applied
    settings: dict  # and with the values of environment variables, as far as they are known
    digest: str
    problem: str = ""  # why its configuration cannot be read

    def set_options(self):
        return [word for key, value in self.sets.items() for word in ("--set", f"{key}={flow(value)}")]

    def exchange(self, key, default):
        return section(self.settings, "exchange").get(key, default)

    @property
    def batch_size(self):
        return configuration.batch_size(self.settings, self.ranks)

    @property
    def transport(self):
        return self.exchange("transport", "mpi")

    @functools.cached_property
    def task(self):
        """What the seconds of a sample depend on: network with its parameters, data, type of the arithmetic,
        device."""

        def section_less(name, without):
            value = self.settings.get(name)
            return {k: v for k, v in value.items() if k not in without} if isinstance(value, dict) else value

        parts = [
            self.settings.get("network"),
            section_less("train", ("seed", "epochs", "batch_size")),
            section_less("data", ("root", "shuffle")),
        ]
        return json.dumps(parts, sort_keys=True)


def expand(study):
    """All runs. Raises StudyError."""
    size = math.prod(len(axis.choices) for axis in study.axes)
    if size > MAX_RUNS:
        raise StudyError(f"{study.where['axes']}: axes: {size} combinations; at most {MAX_RUNS} are taken")
    _check_overlap(study.axes)
    root_of = functools.cache(read)
    values = variables.known(study.env)
    runs, seen = [], {}
    for combination in itertools.product(*(axis.choices for axis in study.axes)):
        chosen = {axis.name: choice for axis, choice in zip(study.axes, combination)}
        if any(
            all(chosen[axis].label in allowed for axis, allowed in rule.items()) for rule in study.excludes
        ):
            continue
        run = _run(study, chosen, root_of, values)
        if run.digest in seen:
            raise StudyError(
                f"{study.path}: '{seen[run.digest]}' and '{_all_labels(run)}' are the same settings; "
                "leave one out"
            )
        seen[run.digest] = _all_labels(run)
        runs.append(run)
    if not runs:
        raise StudyError(f"{study.path}: every run is excluded")
    return runs


def chosen(study, runs):
    """Those that the command line asks for. Raises StudyError."""
    found = [run for run in runs if all(run.choices[axis] in names for axis, names in study.only.items())]
    if not found:
        raise StudyError(f"{study.path}: no run has all the values of --only; --dry-run without it lists the runs")
    return found


def _all_labels(run):
    return ", ".join(labels.of_choice(axis, label) for axis, label in run.choices.items())


def _check_overlap(axes):
    """Two axes that set the same key would depend on their order."""
    setters = {}
    for axis in axes:
        for choice in axis.choices:
            for key in choice.sets:
                setters.setdefault(key, {}).setdefault(axis.name, choice)
    for (a, first), (b, second) in itertools.combinations(setters.items(), 2):
        if a.startswith(b + ".") or b.startswith(a + "."):
            _refuse_two({**first, **second}, f"{a} and {b}")
    for key, by_axis in setters.items():
        _refuse_two(by_axis, key)


def _refuse_two(by_axis, keys):
    if len(by_axis) > 1:
        first, second = list(by_axis)[:2]
        raise StudyError(f"{by_axis[second].where}: axes '{first}' and '{second}' both set {keys}")


def _run(study, chosen, root_of, values):
    config = next((c.config for c in chosen.values() if c.config), study.config)
    sets = dict(study.sets)
    for choice in chosen.values():
        for key, value in choice.sets.items():
            sets.pop(key, None)  # moves it to the end
            sets[key] = value
    asked = next((c.ranks for c in chosen.values() if c.ranks), None)
    problem = ""
    try:
        written = _resolved(sets, config, root_of)
        if _is_over_threads(written, values) and asked is not None:
            sets["exchange.ranks"] = asked
            written = _resolved(sets, config, root_of)
    except UserError as error:
        written, problem = {"config": config, **sets}, str(error)
    settings = variables.expanded(written, values)
    ranks = asked or _ranks(settings)
    digested = {**written, "network": _with_written_classes(written.get("network"))}
    digest = hashlib.sha256(json.dumps([digested, asked or _ranks(written)], sort_keys=True).encode()).hexdigest()
    if type(ranks) is not int or ranks < 1:
        problem, ranks = problem or f"{config}: exchange.ranks: {_no_number(ranks, study)}", 1
    choices = {axis: choice.label for axis, choice in chosen.items()}
    several = {axis.name for axis in study.axes if len(axis.choices) > 1}
    words = [labels.of_choice(axis, label) for axis, label in choices.items()]
    name = "-".join([labels.slug(word, 40) for word in words] or [labels.slug(study.name)])
    return GridRun(
        name=f"{name[:100]}-{digest[:16]}",
        label=", ".join(labels.of_choice(axis, label) for axis, label in choices.items() if axis in several)
        or study.name,
        choices=choices,
        values={axis: _cell(choice) for axis, choice in chosen.items()},
        config=config,
        sets=sets,
        ranks=ranks,
        written=written,
        settings=settings,
        digest=digest,
        problem=problem,
    )


def _is_over_threads(settings, values):
    return section(variables.expanded(settings, values), "exchange").get("transport") == "threads"


def _ranks(settings):
    """Where the study does not say it: as written, which may be no number."""
    exchange = section(settings, "exchange")
    return exchange.get("ranks", 1) if exchange.get("transport") == "threads" else 1


def _no_number(ranks, study):
    for _, name in variables.named(ranks, "exchange.ranks"):
        how = "differs between jobs" if name in study.env else "is not set"
        return f"needs the environment variable {name}, which {how}"
    return f"expected a whole number from 1, not {flow(ranks)}"


def _cell(choice):
    """A number stays a number in the tables unless it was given a name."""
    value = choice.value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and choice.label == flow(value) else choice.label


def _resolved(sets, path, root_of):
    """The configuration at `path` with the values of `sets`, and the network's file in place of its path."""
    root = root_of(path)
    if not root.is_map():
        root.fail("", "expected a configuration: a map of sections")
    settings = root.data()
    if "network" in sets:
        settings["network"] = copy.deepcopy(sets["network"])
    settings["network"] = _network(settings.get("network"), path, root_of)
    for key, value in sets.items():
        if key != "network":
            assign(settings, key.split("."), value)
    return settings


def _with_written_classes(network):
    """A network's file as earlier revisions had it, with the number of classes in place of `$outputs`: the
    digests of their runs stay the same."""
    if not isinstance(network, dict) or network.get("classes") != "$outputs":
        return network
    parameters = dict(network.get("parameters") or {})
    classes = parameters.get("outputs")
    if classes is None:
        return network
    if network.get("name") in HAD_OUTPUTS:
        return {**network, "classes": classes}
    del parameters["outputs"]
    written = _replaced({**network, "parameters": parameters}, "$outputs", classes)
    return {key: value for key, value in written.items() if key != "parameters" or value}


def _replaced(tree, old, new):
    if isinstance(tree, dict):
        return {key: _replaced(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_replaced(value, old, new) for value in tree]
    return new if tree == old else tree


def _network(given, path, root_of):
    """A network may be a path, a map with a path in `file`, or the network itself."""
    file = given.get("file") if isinstance(given, dict) else given
    if not isinstance(file, str):
        return given if given is not None else {}
    file = file if os.path.isabs(file) else os.path.join(os.path.dirname(path), file)
    if not os.path.isfile(file):
        raise StudyError(f"{path}: network: no file {file}")
    network = root_of(file).data()
    if isinstance(given, dict) and isinstance(network, dict):
        given = {key: value for key, value in given.items() if key != "file"}
        network = {
            **network,
            **given,
            "parameters": {**(network.get("parameters") or {}), **(given.get("parameters") or {})},
        }
    return network


def assign(settings, path, value):
    for i, part in enumerate(path):
        is_last = i + 1 == len(path)
        if isinstance(settings, list):
            if not part.isdigit() or int(part) >= len(settings):
                raise StudyError(
                    f"--set {'.'.join(path)}: the list has no entry '{part}'; it has {len(settings)}"
                )
            part = int(part)
            following = settings[part]
        else:
            following = settings.get(part)
        if is_last:
            settings[part] = copy.deepcopy(value)  # a later key may change it, for this run alone
            return
        if not isinstance(following, (dict, list)):
            # A scalar codec is its kind.
            following = {"kind": following} if isinstance(following, str) and part == "codec" else {}
            settings[part] = following
        settings = following
