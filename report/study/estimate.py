"""What a grid will send and take, before it runs."""

import os

import files
import published
import table
from configuration import section
from errors import UserError
from words import counted

from . import measures, tables
from .progress import duration, epochs_of

# Training samples of data sets whose size is fixed: docs/data.md.
SAMPLES = {"cifar100": 50_000, "mnist": 60_000, "fashion_mnist": 60_000, **published.train_samples()}


def steps(run):
    """Of the whole run, or None where the number of samples is not known before the data is read."""
    data = section(run.settings, "data")
    batch = run.batch_size
    known = SAMPLES.get(data.get("dataset"))
    asked = data.get("train_samples") if isinstance(data.get("train_samples"), int) else 0
    samples = min(asked, known) if asked and known else asked or known
    if not samples or not batch:
        return None
    return samples // batch * epochs_of(run)


def bytes_per_step(run, shown):
    """All ranks together, mean over the run's steps: each tensor's bytes go to its owner and from there to the
    others."""
    if run.ranks < 2:
        return 0
    is_allreduce = run.exchange("collective", "reduce_broadcast") == "allreduce"
    return copies_per_step(run) * (4 * shown["parameters"] if is_allreduce else shown["wire_bytes"])


def copies_per_step(run):
    """Encoded copies of the network on the wire. With local steps only some steps have any; warm-ups are left
    out."""
    sync = section(run.settings, "sync")
    copies, h = 2 * (run.ranks - 1), max(1, measures.number(sync, "steps") or 1)
    if sync.get("kind") == "post_local_sgd":
        decay = section(section(run.settings, "schedule"), "decay")
        first = sync.get("from") if isinstance(sync.get("from"), int) else first_decay(decay)
        total = max(1, epochs_of(run))
        before = min(first, total) / total
        return copies * (before + (1 - before) / h)
    if sync.get("kind") == "hierarchical_local_sgd" and isinstance(sync.get("ranks_per_block"), int):
        rounds = max(1, measures.number(sync, "block_steps") or 1)
        size = sync["ranks_per_block"]
        within = run.ranks // size * 2 * (size - 1)
        return (copies + within * (rounds - 1)) / rounds / h
    return copies / h if sync.get("kind") in ("local_sgd", "block_momentum") else copies


def first_decay(decay):
    """The epochs before the rate falls for the first time; 0 if it does not, which the program refuses."""
    if "every" in decay:
        return decay["every"]
    return min((int(epoch) for epoch, factor in decay.items() if epoch != "linear" and factor < 1), default=0)


class CostModel:
    """Seconds of a step by report/costmodel, whose seconds of computing come from runs of the study that are
    done."""

    def __init__(self, runs, folders, jobs):
        self.jobs = jobs
        self.measured = {}  # task -> [(run, folder)]
        self.read = {}  # folder -> the cost model's measurement
        for run in runs:
            if tables.is_done(folders[run.digest], run.digest):
                self.measured.setdefault(run.task, []).append((run, folders[run.digest]))

    def seconds_per_step(self, run, shown):
        """None without the cost model, and where no run of the same task is done."""
        known = self.measured.get(run.task)
        batch = run.batch_size
        if not known or not batch:
            return None
        try:
            from costmodel import config_report, pipeline, run_folder, scaling
        except ImportError:
            return None
        known = [item for item in known if jobs_of(item[1]) == self.jobs] or known
        alike = [item for item in known if (item[0].ranks, item[0].batch_size) == (run.ranks, batch)] or known
        try:
            for _, folder in known:
                if folder not in self.read:
                    self.read[folder] = run_folder.read(folder)
            codec = scaling.codec_of(shown)
            done = [self.read[folder] for _, folder in known]
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
                scaling.from_runs([self.read[folder] for _, folder in alike]),
                wire,
                host,
                bool(run.exchange("overlap", True)),
            ).seconds
        except UserError:
            return None


def jobs_of(folder):
    """How many runs trained at once with this one."""
    return measures.number(files.read_json(os.path.join(folder, "study.json")), "jobs") or 1


def share_left(run, folder):
    """Of the run's epochs, those that its metrics do not have yet."""
    if files.read_json(os.path.join(folder, "study.json")).get("digest") != run.digest:
        return 1.0
    total = max(1, epochs_of(run))
    return max(0, total - len(measures.read_epochs(folder))) / total


def lines(runs, shown, jobs, folders, timed=None):
    """A table of the runs, then sums over what is left of those that are not done. A run that `shown` does
    not have is refused. `timed`: digest -> measured seconds of a step."""
    model = CostModel(runs, folders, jobs)
    rows = [("run", "ranks", "epochs", "steps", "bytes a step", "bytes", "time")]
    total_bytes, times, left = 0, [], []
    for run in runs:
        if run.digest not in shown:
            rows.append((run.name, str(run.ranks), *["?"] * 4, "refused"))
            continue
        each, count = bytes_per_step(run, shown[run.digest]), steps(run)
        text = "done"
        if not tables.is_done(folders[run.digest], run.digest):
            left.append(run)
            count_left = (count or 0) * share_left(run, folders[run.digest])
            total_bytes += each * count_left
            seconds = (timed or {}).get(run.digest) or model.seconds_per_step(run, shown[run.digest])
            text = "?"
            if seconds is not None and count:
                times.append(seconds * count_left)
                text = duration(times[-1])
        rows.append(
            (
                run.name,
                str(run.ranks),
                str(epochs_of(run)),
                str(count or "?"),
                table.bytes_text(each),
                table.bytes_text(each * count) if count else "?",
                text,
            )
        )
    refused = sum(run.digest not in shown for run in runs)
    return [*table.aligned(rows, left=1), total(runs, left, refused, total_bytes, times, jobs)]


def total(runs, left, refused, sent, times, jobs):
    """Of the runs that are left, and how many of them each figure covers."""
    all_runs, left_runs = counted(len(runs), "run"), counted(len(left), "run")
    if refused:
        all_runs += f", {refused} refused"
    if not left and not refused:
        return f"{all_runs}, all done"
    known = [run for run in left if steps(run)]
    text = f"{all_runs}, {len(runs) - len(left) - refused} done; left: {table.bytes_text(sent)} on the wire"
    if len(known) < len(left):
        text += f" in {len(known)} of {left_runs} (the steps of the others are not known)"
    if not times:
        return text + "; the time is not known until a run of the same network is done: see --time-steps"
    at_once = max(1, min(jobs, len(left)))
    spread = f"{len(times)} of {left_runs}, {at_once} at once"
    return text + f", {duration(sum(times) / at_once)} without evaluation for {spread}"
