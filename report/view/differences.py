"""How far two means over seeds lie apart, and how sure that is."""

import itertools
import math
import statistics

import pandas
from scipy import stats

from .curves import METRICS, metric_of
from .item import Item, rounded

LEVEL = 0.95  # of the intervals


def welch(first, second):
    """(mean of `first` less mean of `second`, half of the interval of LEVEL around it), by Welch's t-test:
    each of two or more values has a deviation of its own. B. L. Welch, Biometrika 34 (1947), 28-35."""
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    difference = statistics.fmean(first) - statistics.fmean(second)
    both = sum(parts)
    if both == 0:
        return difference, 0.0
    freedom = both**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second))
    )
    return difference, float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(both)


def item(groups, network):
    """A row for each pair of groups that have several seeds; None without a pair."""
    metric = metric_of(groups)
    several = [(group, group.finals(metric)) for group in groups]
    several = [(group, values) for group, values in several if len(values) > 1]
    rows = []
    for (base, others), (group, values) in itertools.combinations(several, 2):
        difference, half = welch(values, others)
        rows.append(
            {
                "label": group.label,
                "less": base.label,
                "seeds": len(values),
                "seeds_of_less": len(others),
                "difference": rounded(difference, 3),
                "plus_minus": rounded(half, 3),
                "visible": abs(difference) > half,
            }
        )
    if not rows:
        return None
    what = METRICS[metric].split(" (")[0]
    return Item(
        f"differences_{metric[4:]}_{network}",
        f"{network}: differences of {what} between settings",
        f"Mean {what} over seeds after the last epoch, less that of another setting. Plus minus: half of the "
        f"difference's {100 * LEVEL:.0f} % interval, by Welch's t-test. Visible: the interval leaves out 0. Where "
        "nothing differs, one pair of twenty is still visible by chance.",
        pandas.DataFrame(rows),
    )
