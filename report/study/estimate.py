"""What a grid will send and take, before it runs."""

from . import tables
from .progress import duration, epochs_of

# Training samples of data sets whose size is fixed: docs/data.md.
SAMPLES = {"cifar10": 50_000, "cifar100": 50_000, "mnist": 60_000, "fashion_mnist": 60_000, "imagenet": 1_281_167}


def steps(run):
    """Of the whole run, or None where the number of samples is not known before the data is read."""
    data = run.settings.get("data") if isinstance(run.settings.get("data"), dict) else {}
    batch = run.batch_size
    known = SAMPLES.get(data.get("dataset"))
    asked = data.get("train_samples") if isinstance(data.get("train_samples"), int) else 0
    samples = min(asked, known) if asked and known else asked or known
    if not samples or not batch:
        return None
    return samples // batch * epochs_of(run)


def bytes_per_step(run, shown):
    """All ranks together: each tensor's bytes go to its owner and from there to the others."""
    if run.ranks < 2:
        return 0
    is_allreduce = run.exchange("collective", "reduce_broadcast") == "allreduce"
    return 2 * (run.ranks - 1) * (4 * shown["parameters"] if is_allreduce else shown["wire_bytes"])


class CostModel:
    """Seconds of a step by report/costmodel, whose seconds of computing come from runs of the study that are done."""

    def __init__(self, runs, folders):
        self.measured = {}  # configuration -> folders
        for run in runs:
            if tables.is_done(folders[run.digest], run.digest):
                self.measured.setdefault(run.config, []).append(folders[run.digest])

    def seconds_per_step(self, run, shown):
        """None without the cost model, and where no run of the configuration is done."""
        folders = self.measured.get(run.config)
        batch = run.batch_size
        if not folders or not batch:
            return None
        try:
            from costmodel import config_report, errors, pipeline, run_folder, scaling
        except ImportError:
            return None
        try:
            done = [run_folder.read(folder) for folder in folders]
            codec = scaling.codec_of(shown)
            host, _ = scaling.host_for(codec, done, shown["parameters"], pipeline.Host(0.0, 0.0))
            link = run.exchange("link", None)
            if isinstance(link, dict) and "bandwidth" in link:
                wire = config_report.link_of(f"{link['bandwidth']},{link.get('latency', '0us')}")
            else:  # messages inside one machine: their cost is the host's
                wire = pipeline.Link(1e15, 0.0)
            return scaling.predict(
                shown,
                codec,
                run.ranks,
                batch / run.ranks,
                scaling.from_runs(done),
                wire,
                host,
                bool(run.exchange("overlap", True)),
            ).seconds
        except errors.CostModelError:
            return None


def lines(runs, shown, jobs, folders):
    """A table of the runs, then sums."""
    import table

    model = CostModel(runs, folders)
    rows = [("run", "ranks", "epochs", "steps", "bytes a step", "bytes", "time")]
    total_bytes, total_seconds, has_all = 0, 0.0, True
    for run in runs:
        answer = shown[run.digest]
        each, count, seconds = bytes_per_step(run, answer), steps(run), model.seconds_per_step(run, answer)
        total_bytes += each * (count or 0)
        time = seconds * count if seconds is not None and count else None
        total_seconds += time or 0.0
        has_all = has_all and count is not None
        rows.append(
            (
                run.name,
                str(run.ranks),
                str(epochs_of(run)),
                str(count or "?"),
                table.bytes_text(each),
                table.bytes_text(each * count) if count else "?",
                duration(time) if time is not None else "?",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    ]
    total = f"{len(runs)} run{'s' if len(runs) != 1 else ''}, {table.bytes_text(total_bytes)} on the wire" + (
        "" if has_all else " where the number of steps is known"
    )
    if total_seconds:
        total += f", {duration(total_seconds / jobs)} with {jobs} at once"
    elif not model.measured:
        total += "; the time is estimated once a run of the configuration is done"
    return [*text, total]
