"""Labels of runs: the same for the seeds of one group, another for every other group that a figure shows
beside it."""

import configuration
import words
from study import labels as axis_labels


def network_of(run):
    return str(configuration.section(run.config, "network").get("name") or "network")


def settings(config):
    """{"a.b": "value"} of what may change a result or a time. A usual value is left out: the record of a
    version that did not have the key yet stands for it."""
    return {
        key: str(value)
        for key, value in words.flat(config).items()
        if value != words.USUAL.get(key) and not words.is_of(key, words.WITHOUT_EFFECT)
    }


def identity(run):
    """Equal for runs that differ in their seed only. Those that are not finished are as far as each other."""
    axes = tuple(str(value) for _, value in told_axes(run, ()))
    return run.ranks, axes, tuple(sorted(settings(run.config).items())), run.progress, run.copy


def labels(runs, omit):
    """A study's own names of its variants; else what differs in the runs' settings. `omit`: see
    gather.groups."""
    out = _of_study(runs, omit) or _of_settings(runs, omit)
    out = [", ".join(filter(None, [text, run.progress])) for run, text in zip(runs, out)]
    out = _unique(runs, out, omit)
    assert not _collisions(runs, out, omit)
    return out


def told_axes(run, omit):
    """(axis, value) of the study's axes but the seed's and those in `omit`."""
    axes = run.study.get("axes")
    hidden = {"seed", "train.seed", *omit, *(["config"] if "network" in omit else [])}
    return (
        [(name, str(value)) for name, value in axes.items() if name not in hidden]
        if isinstance(axes, dict)
        else []
    )


def _of_study(runs, omit):
    """None for runs that are not of one study, or whose axes say nothing."""
    told = [told_axes(run, omit) for run in runs]
    if (
        len({run.study.get("study") for run in runs}) > 1
        or len({tuple(name for name, _ in one) for one in told}) > 1
    ):
        return None
    differing = [i for i in range(len(told[0])) if len({one[i][1] for one in told}) > 1]
    if not differing:
        return None
    texts = [", ".join(axis_labels.of_choice(*one[i]) for i in differing) for one in told]
    collectives = {}
    for run, text in zip(runs, texts):
        collectives.setdefault(text, set()).add(_collective(run))
    return [text + _collective_text(run, text, collectives[text]) for run, text in zip(runs, texts)]


def _collective(run):
    return configuration.section(run.config, "exchange").get("collective", "reduce_broadcast")


def _collective_text(run, text, collectives):
    """What a label must add: that a run is simulated, always; another collective where the label has
    several."""
    if run.simulated:
        return "" if "simulated" in text.lower() else " (simulated)"
    has_several = len(collectives - {"simulated"}) > 1
    return f", {_collective(run)}" if has_several and _collective(run) != "reduce_broadcast" else ""


def _of_settings(runs, omit):
    hidden = {"ranks"} & set(omit) | {f"exchange.{name}" for name in omit} | ({"network"} & set(omit))
    if "network" in omit:  # what belongs to a network's recipe
        hidden |= {"train.batch_size", "train.epochs"}
    return words.labels([run.config for run in runs], [run.ranks for run in runs], hidden)


def _place(run, omit):
    """Where a figure shows the run, by what its panels or axis say."""
    where = {
        "network": network_of(run),
        "ranks": run.ranks,
        "transport": configuration.section(run.config, "exchange").get("transport", "mpi"),
    }
    return tuple(where[name] for name in omit)


def _collisions(runs, texts, omit):
    """Labels that stand for several groups at one place, with these groups' runs."""
    found = {}
    for i, (run, text) in enumerate(zip(runs, texts)):
        found.setdefault((text, _place(run, omit)), {}).setdefault(identity(run), []).append(i)
    return {key: by_identity for key, by_identity in found.items() if len(by_identity) > 1}


def _unique(runs, texts, omit):
    """Adds to labels that collide every setting in which their runs differ; where that is not enough, a run's
    name."""
    out = list(texts)
    for (text, _), by_identity in _collisions(runs, texts, omit).items():
        members = [i for indices in by_identity.values() for i in indices]
        flats = {i: words.flat(runs[i].config) for i in members}
        keys = [
            key
            for key in dict.fromkeys(key for one in flats.values() for key in one)
            if not words.is_of(key, (*words.WITHOUT_EFFECT, "network"))
        ]
        differ = [key for key in keys if len({str(words.value_of(one, key)) for one in flats.values()}) > 1]
        for i in members:
            more = [words.setting_text(key, words.value_of(flats[i], key)) for key in differ]
            out[i] = ", ".join([text, *(part for part in more if part)])
    for by_identity in _collisions(runs, out, omit).values():
        firsts = [runs[indices[0]] for indices in by_identity.values()]
        has_names = len({run.name for run in firsts}) == len(firsts)
        for first, indices in zip(firsts, by_identity.values()):
            for i in indices:
                out[i] = f"{out[i]}, {first.name if has_names else first.folder}"
    return out
