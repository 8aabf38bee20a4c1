"""The study's accuracy beside that of the runs, where network, codec and data set are the same."""

import published
import style
from configuration import section

HOLLOW = {"linestyle": "", "markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.4}


def accuracy(group):
    """[(epoch, top1)]; empty where the study has none, or has another data set."""
    return published.accuracy(group.network).get(group.codec, []) if has_data(group) else []


def has_data(group):
    """Whether every run trained on all samples of the study's data set."""
    data_set = published.data_sets().get(group.network)
    all_samples = published.train_samples().get(data_set)
    return data_set is not None and all(
        section(run.config, "data").get("dataset") == data_set
        and section(run.config, "data").get("train_samples", 0) in (0, all_samples)
        for run in group.runs
    )


def last_epoch(groups):
    return max(float(run.epochs["epoch"].iloc[-1]) for group in groups for run in group.runs)


def within(groups):
    """{codec: [(epoch, top1)]} of as many epochs as the longest run has, or fewer."""
    last = 1.02 * last_epoch(groups)
    found = {group.codec: [p for p in accuracy(group) if p[0] <= last] for group in groups}
    return {codec: points for codec, points in found.items() if points}


def mark(axes, part, looks, groups):
    """Marks what is within the axes of `groups`. Returns a legend's entries, one a codec."""
    points, handles = within(groups), []
    for group, look in zip(part, looks):
        if group.codec not in points:
            continue
        hollow = {**HOLLOW, "marker": look["marker"], "markeredgecolor": look["color"]}
        axes.plot(*zip(*points.pop(group.codec)), **hollow)
        handles.append(style.handle(f"study: {published.codec_name(group.codec)}", hollow))
    return handles


def caption(groups):
    """Which epochs were published, and which of them the axes do not reach."""
    epochs = sorted({epoch for group in groups for epoch, _ in accuracy(group)})
    if not epochs:
        return ""
    shown = {epoch for points in within(groups).values() for epoch, _ in points}
    beyond = [epoch for epoch in epochs if epoch not in shown]
    told = f" Published in {published.NAME}: after {listed(epochs)} epochs"
    told += " (empty markers)" if shown else ""
    return told + (f"; the runs here do not reach {listed(beyond)}." if beyond else ".")


def listed(numbers):
    words = [str(number) for number in numbers]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
