"""How far two means over seeds lie apart, and how sure that is."""

import itertools
import math
import statistics

import configuration
import pandas
from scipy import stats

from .curves import METRICS, metric_of
from .item import Item, rounded

LEVEL = 0.95  # of the intervals


def welch(first, second):
    """(mean of `first` less mean of `second`, half of the interval of LEVEL around it), by Welch's t-test:
    each of two or more values has a deviation of its own. The half is None where no value deviates from its
    mean, and both are where a value is not finite. B. L. Welch, Biometrika 34 (1947), 28-35."""
    if not all(map(math.isfinite, [*first, *second])):
        return None, None
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    difference = statistics.fmean(first) - statistics.fmean(second)
    both = sum(parts)
    if both == 0:
        return difference, None
    freedom = both**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second)))
    return difference, half_interval(freedom, both)


def paired(first, second):
    """Half of the interval of the mean of first[i] - second[i], by the paired t-test; None as in welch()."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if not all(map(math.isfinite, differences)):
        return None
    variance = statistics.variance(differences) / len(differences)
    return half_interval(len(differences) - 1, variance) if variance > 0 else None


def half_interval(freedom, variance):
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance)


def by_seed(group, metric):
    """{seed: the last value}. Of runs with one seed the first counts."""
    out = {}
    for run in group.runs:
        if metric in run.epochs:
            seed = configuration.section(run.config, "train").get("seed")
            out.setdefault(seed, float(run.epochs[metric].iloc[-1]))
    return out


def item(groups, network):
    """A row for each pair of groups that have several seeds; None without a pair."""
    metric = metric_of(groups)
    several = [(group, values) for group in groups if len(values := by_seed(group, metric)) > 1]
    rows = []
    for (base, others), (group, values) in itertools.combinations(several, 2):
        difference, half = welch(list(values.values()), list(others.values()))
        same = None
        if values.keys() == others.keys():
            same = paired(list(values.values()), [others[seed] for seed in values])
        rows.append(
            {
                "label": group.label,
                "less": base.label,
                "seeds": len(values),
                "seeds_of_less": len(others),
                "difference": rounded(difference, 3),
                "plus_minus": rounded(half, 3),
                "plus_minus_of_same_seeds": rounded(same, 3),
                "visible": verdict(difference, half, same),
            }
        )
    if not rows:
        return None
    what = METRICS[metric].split(" (")[0]
    return Item(
        f"differences_{metric[4:]}_{network}",
        f"{network}: differences of {what} between settings",
        f"Mean {what} over seeds after the last epoch, less that of another setting. Plus minus: half of the "
        f"difference's {100 * LEVEL:.0f} % interval, by Welch's t-test; of same seeds: by the paired t-test, "
        "because runs with one seed start from the same weights and read the same samples. Visible: the "
        "interval leaves out 0. Where nothing differs, one pair of twenty is still visible by chance.",
        pandas.DataFrame(rows),
    )


def verdict(difference, half, same):
    if half is not None and abs(difference) > half:
        return "yes"
    if same is not None and abs(difference) > same:
        return "by same seeds"
    return "no" if half is not None else ""
