"""What a grid will send and take, before it runs."""

import os

import files
import run_length
import synchronisation
import table
import warmup
from configuration import section
from errors import UserError
from words import counted, is_of

from . import launcher, measures, tables, variables
from .progress import duration, epochs_of


# What steps and bytes depend on.
COUNTED = ("data.dataset", "data.train_samples", "data.truncate", "train.epochs", "train.batch_size", "schedule.decay")


def is_known(run):
    """Whether no variable of the environment that is not set decides what the run sends."""
    return not any(is_of(key, (*COUNTED, "exchange", "sync")) for key, _ in variables.named(run.settings))


def steps(run):
    """Of the whole run, or None where the number of samples is not known before the data is read."""
    each = run_length.steps_per_epoch(run.settings, run.ranks)
    return each * epochs_of(run) if each and is_known(run) else None


def exchanges(run, first_epoch=0):
    """From an epoch on."""
    each = run_length.steps_per_epoch(run.settings, run.ranks)
    return synchronisation.exchanges(run.settings, epochs_of(run), each) - synchronisation.exchanges(
        run.settings, min(first_epoch, epochs_of(run)), each
    )


def warmup_exchanges(run, first_epoch=0):
    """Those of exchanges() that the warm-up of codecs sends as float32."""
    each = run_length.steps_per_epoch(run.settings, run.ranks) or synchronisation.ASSUMED_STEPS
    end = min(warmup.steps(run.settings, each), epochs_of(run) * each)
    if end <= first_epoch * each:
        return synchronisation.NONE
    return synchronisation.exchanges(
        run.settings, end // each, each, end % each
    ) - synchronisation.exchanges(run.settings, first_epoch, each)


def sizes_of_blocks(run, found, hosts):
    """(Ranks of a block of hierarchical_local_sgd, None without it; of one that adds its gradients, 1 without them). None
    where the program will refuse. `hosts`: the launcher's."""
    machines = [run.ranks]
    if hosts and run.transport != "threads":
        machines = synchronisation.machines_of(launcher.host_of_each_rank(hosts, run.ranks))
    block = synchronisation.block_size(run.settings, run.ranks, machines) if found.within else None
    adding = synchronisation.size_that_adds(run.settings, run.ranks, machines)
    refused = not adding or (found.within and (not block or synchronisation.lie_across(block, adding)))
    return None if refused else (block, adding)


def bytes_of(run, shown, found, hosts=(), warm=synchronisation.NONE):
    """All ranks together, in the steps of `found`, of which those of `warm` send float32: each tensor's bytes go
    to its owner and from there to the others. With the collective hierarchical one encoded copy of each block does, and
    gradients travel within blocks as float32. None where blocks are not of one size, or a variable is not set."""
    if run.ranks < 2:
        return 0
    if not is_known(run):
        return None
    sizes = sizes_of_blocks(run, found, hosts)
    if sizes is None:
        return None
    block, adding = sizes
    if run.exchange("collective", "reduce_broadcast") == "allreduce":
        return synchronisation.copies(run.ranks, found, block) * 4 * shown["parameters"]
    sent = synchronisation.copies(run.ranks, found - warm, block, adding) * shown["wire_bytes"]
    float32 = synchronisation.float32_copies(run.ranks, found, block, adding)
    float32 += synchronisation.copies(run.ranks, warm, block, adding) if warm.steps else 0
    return sent + (float32 * 4 * shown["parameters"] if float32 else 0)


class CostModel:
    """Seconds of a step by report/costmodel, whose seconds of computing come from runs of the study that are
    done."""

    def __init__(self, runs, folders, jobs, hosts=()):
        self.jobs, self.hosts = jobs, hosts
        self.measured = {}  # task -> [(run, folder)]
        self.read = {}  # folder -> the cost model's measurement
        for run in runs:
            if tables.is_done(folders[run.digest], run.digest):
                self.measured.setdefault(run.task, []).append((run, folders[run.digest]))

    def seconds_per_step(self, run, shown, found, warm=synchronisation.NONE):
        """The mean over steps with the exchanges of `found`, of which those of `warm` send float32. None without
        the cost model, and where no run of the same task is done."""
        parts = [(found - warm, shown)] if found.steps > warm.steps else []
        if warm.steps:
            parts.append((warm, warmup.as_float32(shown)))
        means = [(part.steps, self.mean_step(run, how, part)) for part, how in parts]
        if not means or any(mean is None for _, mean in means):
            return None
        return sum(count * mean for count, mean in means) / found.steps

    def mean_step(self, run, shown, found):
        known = self.measured.get(run.task)
        batch = run.batch_size
        sizes = sizes_of_blocks(run, found, self.hosts)
        if not known or not batch or sizes is None:
            return None
        block, adding = sizes
        try:
            from costmodel import devices, fragments, links, local_steps, pipeline, plan, scaling
        except ImportError:
            return None
        known = [item for item in known if self.can_read(item[1])]
        if not known:
            return None
        known = [item for item in known if jobs_of(item[1]) == self.jobs] or known
        device = self.read[known[0][1]].device
        known = [item for item in known if self.read[item[1]].device == device]
        alike = [item for item in known if (item[0].ranks, item[0].batch_size) == (run.ranks, batch)] or known
        try:
            codec = scaling.codec_of(shown)
            done = [self.read[folder] for _, folder in known]
            base = devices.host_of(run.settings, device, pipeline.Host(0.0, 0.0))
            host, _ = scaling.host_for(codec, done, shown["parameters"], base, adding > 1, device)
            # Without a link messages stay inside one machine: their cost is the host's.
            wire = links.emulated(section(run.settings, "exchange"), run.config) or pipeline.NO_LINK
            return local_steps.mean_step(
                shown,
                codec,
                run.ranks,
                batch / run.ranks,
                scaling.from_runs([self.read[folder] for _, folder in alike]),
                wire,
                host,
                devices.overlaps(run.settings, device, run.ranks),
                plan.pack_bytes(run.settings, device),
                found,
                local_steps.Blocks(block, wire) if block else None,
                fragments.streaming_of(run.settings),
                pipeline.Machines(adding, None, adding > 1),
            ).seconds
        except UserError:
            return None

    def can_read(self, folder):
        """Whether its measurement serves; it is then in `read`."""
        from costmodel import run_folder

        if folder not in self.read:
            try:
                self.read[folder] = run_folder.read(folder)
            except UserError:
                self.read[folder] = None
        return self.read[folder] is not None


def jobs_of(folder):
    """How many runs trained at once with this one."""
    return measures.number(files.read_json(os.path.join(folder, "study.json")), "jobs") or 1


def epochs_done(run, folder):
    """Those that its metrics have."""
    if files.read_json(os.path.join(folder, "study.json")).get("digest") != run.digest:
        return 0
    return min(epochs_of(run), len(measures.read_epochs(folder)))


def rest(run, folder):
    """The exchanges of its epochs that are not done, and those of them in the warm-up of codecs."""
    done = epochs_done(run, folder)
    return exchanges(run, done), warmup_exchanges(run, done)


def lines(runs, shown, jobs, folders, timed=None, hosts=(), every_run=()):
    """A table of the runs, then sums over what is left of those that are not done. A run that `shown` does
    not have is refused. `timed`: digest -> measured seconds of a step. `hosts`: the launcher's. `every_run`: of the
    grid, which has others that may be done."""
    model = CostModel(every_run or runs, folders, jobs, hosts)
    rows = [("run", "ranks", "epochs", "steps", "bytes a step", "bytes", "time")]
    total_bytes, times, left, unsized = 0, [], [], []
    for run in runs:
        if run.digest not in shown:
            rows.append((run.name, str(run.ranks), *["?"] * 4, "refused"))
            continue
        found, count = exchanges(run), steps(run)
        sent = bytes_of(run, shown[run.digest], found, hosts, warmup_exchanges(run))
        text = "done"
        if not tables.is_done(folders[run.digest], run.digest):
            left.append(run)
            to_do, warm = rest(run, folders[run.digest])
            if count and sent is not None:
                total_bytes += bytes_of(run, shown[run.digest], to_do, hosts, warm)
            else:
                unsized.append("steps" if not count else "blocks of ranks")
            about = shown[run.digest]
            seconds = (timed or {}).get(run.digest) or model.seconds_per_step(run, about, to_do, warm)
            text = "?"
            if seconds is not None and count:
                times.append(seconds * to_do.steps)
                text = duration(times[-1])
        rows.append(
            (
                run.name,
                str(run.ranks),
                "?" if any(key == "train.epochs" for key, _ in variables.named(run.settings)) else str(epochs_of(run)),
                str(count or "?"),
                "?" if sent is None else table.bytes_text(sent / max(1, found.steps)),
                "?" if sent is None or not count else table.bytes_text(sent),
                text,
            )
        )
    refused = sum(run.digest not in shown for run in runs)
    return [*table.aligned(rows, left=1), total(runs, left, refused, total_bytes, unsized, times, jobs)]


def total(runs, left, refused, sent, unsized, times, jobs):
    """Of the runs that are left, and how many of them each figure covers. `unsized`: what is not known of
    those whose bytes are not in `sent`."""
    all_runs, left_runs = counted(len(runs), "run"), counted(len(left), "run")
    if refused:
        all_runs += f", {refused} refused"
    if not left and not refused:
        return f"{all_runs}, all done"
    text = f"{all_runs}, {len(runs) - len(left) - refused} done; left: {table.bytes_text(sent)} on the wire"
    if unsized:
        what = " or ".join(dict.fromkeys(unsized))
        text += f" in {len(left) - len(unsized)} of {left_runs} (the {what} of the others are not known)"
    if not times:
        return text + "; the time is not known until a run of the same network is done: see --time-steps"
    at_once = max(1, min(jobs, len(left)))
    spread = f"{len(times)} of {left_runs}, {at_once} at once"
    return text + f", {duration(sum(times) / at_once)} without evaluation for {spread}"
