"""One row for each group of runs that differ in their seed only."""

import configuration
import pandas
import published
import words

from . import beside
from .curves import metric_of
from .gather import mean_and_deviation
from .item import Item, rounded
from .tradeoff import ratio


def item(groups):
    rows = []
    for group in groups:
        exchange = configuration.section(group.runs[0].config, "exchange")
        metric = metric_of([group])
        final, deviation = mean_and_deviation(group.finals(metric))
        best = [
            float(run.epochs[metric].min() if metric == "val_perplexity" else run.epochs[metric].max())
            for run in group.runs
        ]
        loss = mean_and_deviation(group.finals("train_loss"))[0]
        times = ratio(group)
        timed = group.timed()
        study = beside.accuracy(group)
        rows.append(
            {
                "network": group.network,
                "label": group.label,
                "codec": words.exchange_text(exchange),
                "transport": group.transport,
                "ranks": group.ranks,
                "seeds": len(group.runs),
                "epochs": min(len(run.epochs) for run in group.runs),
                metric: rounded(final, 2),
                "deviation": rounded(deviation, 2),
                "best": rounded(mean_and_deviation(best)[0], 2),
                "study_top1": study[-1][1] if study else None,
                "study_epochs": study[-1][0] if study else None,
                "train_loss": rounded(loss, 4),
                "samples_per_s": rounded(timed and timed.mean("samples_per_s")),
                "communication_s": rounded(timed and timed.mean("communication_s"), 3),
                "computation_s": rounded(timed and timed.mean("computation_s"), 3),
                "bytes_an_epoch": round(group.mean("bytes_sent")),
                "fewer_bytes": rounded(times, 2),
            }
        )
    return Item(
        "summary",
        "All runs",
        "Mean over seeds; deviation: the standard deviation over seeds (n - 1). Accuracy in percent after "
        "the last epoch. Samples, seconds and bytes: mean per epoch. Fewer bytes: float32's bytes over those "
        f"sent. Study: the accuracy that {published.NAME} gives for the same network, codec and data set, after so "
        "many epochs.",
        pandas.DataFrame(rows),
    )
