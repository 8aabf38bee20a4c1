"""How often ranks exchange, by section `sync` of a configuration: docs/local-sgd.md, trainer/local_step.cc.
Epochs and steps count from 0.
"""

import bisect
import itertools
from dataclasses import astuple, dataclass

from configuration import section

# Steps of an epoch where the number of samples is not known; what a warm-up adds is then nearly right.
ASSUMED_STEPS = 1000
# As in the trainer: what should be an integer may come out just below it.
UP = 1 + 1e-9


@dataclass(frozen=True)
class Exchanges:
    """In so many steps."""

    steps: int
    gradients: int  # steps that exchange gradients, during backward
    within: int = 0  # synchronisations within blocks of ranks
    everywhere: int = 0  # synchronisations of all ranks

    def __sub__(self, earlier):
        return Exchanges(*(a - b for a, b in zip(astuple(self), astuple(earlier))))

    @property
    def total(self):
        return self.gradients + self.within + self.everywhere


EVERY_STEP = Exchanges(1, 1)
NONE = Exchanges(0, 0)


def kind_of(settings):
    return str(section(settings, "sync").get("kind", "every_step"))


def whole(section_, key, usual):
    """A value that counts something; a mistaken one is as if it were not given."""
    value = section_.get(key)
    return value if type(value) is int and value >= 1 else usual


def first_local_epoch(settings):
    """Of post_local_sgd: where the rate first falls, unless an epoch is given. A decay that never falls is
    refused."""
    decay = section(section(settings, "schedule"), "decay")
    given = section(settings, "sync").get("from")
    epochs = [int(key) for key, factor in decay.items() if str(key).isdigit() and factor < 1]
    return given if type(given) is int else decay.get("every") or min(epochs, default=0)


def interval(settings, step, per_epoch):
    """H at a step: it never falls during a run."""
    sync = section(settings, "sync")
    kind, h = kind_of(settings), whole(sync, "steps", 1)
    if kind == "every_step":
        return 1
    if kind == "post_local_sgd":
        return h if step // per_epoch >= first_local_epoch(settings) else 1
    warmup, epochs = sync.get("warmup", "none"), whole(sync, "warmup_epochs", 0)
    if warmup == "none" or step // per_epoch >= epochs:
        return h
    share = (step // per_epoch + step % per_epoch / per_epoch) / epochs
    if warmup == "linear":
        return 1 + int((h - 1) * share * UP)
    return int(h**share * UP) if warmup == "exponential" else 1


def is_local(settings):
    """Whether ranks ever train by themselves, as trainer/sync_options.cc has it."""
    sync, kind = section(settings, "sync"), kind_of(settings)
    if kind == "every_step" or whole(sync, "steps", 1) > 1:
        return kind != "every_step"
    if sync.get("reset_momentum") is True and kind != "post_local_sgd":
        return True
    if kind == "hierarchical_local_sgd":
        return whole(sync, "block_steps", 1) > 1
    return kind == "block_momentum" and (sync.get("momentum", 0.9) != 0 or sync.get("rate", 1) != 1)


def exchanges(settings, epochs, per_epoch=None, more=0):
    """Of the first `epochs` epochs of a run, and of so many steps `more`. The turns of all fragments are one
    exchange."""
    per_epoch = per_epoch or ASSUMED_STEPS
    total = per_epoch * epochs + more
    if not is_local(settings):
        return Exchanges(total, total)
    sync, kind = section(settings, "sync"), kind_of(settings)
    always_local = kind in ("hierarchical_local_sgd", "block_momentum") or (
        kind == "local_sgd" and sync.get("reset_momentum") is True
    )

    def h_of(step):
        return interval(settings, step, per_epoch)

    step, gradients, rounds, since = 0, 0, 0, 0
    while step < total:  # through the parts of the run that have one H
        h = h_of(step)
        end = bisect.bisect_right(range(total), h, lo=step, key=h_of)
        if h == 1 and not always_local:
            gradients += end - step
        else:
            rounds += (since + end - step) // h
            since = (since + end - step) % h
        step = end
    everywhere = rounds
    if kind == "hierarchical_local_sgd":
        everywhere = rounds // whole(sync, "block_steps", 1)
    return Exchanges(total, gradients, rounds - everywhere, everywhere)


def machines_of(hosts):
    """How many ranks each machine has, from each rank's host; nothing where a machine's ranks are not
    consecutive."""
    groups = [(host, len(list(ranks))) for host, ranks in itertools.groupby(hosts)]
    return [size for _, size in groups] if len(dict(groups)) == len(groups) else []


def block_size(settings, ranks, machines, of="sync"):
    """Ranks of a block of hierarchical_local_sgd, or of the collective hierarchical (`of`: exchange); None where the
    program will refuse. `machines`: how many ranks each machine has."""
    size = whole(section(settings, of), "ranks_per_block", None)
    if size is None:
        size = machines[0] if len(set(machines)) == 1 else None
    return size if size and ranks % size == 0 else None


def size_that_adds(settings, ranks, machines):
    """Ranks of a block of the collective hierarchical; 1 without it. None where the program will refuse."""
    if ranks == 1 or section(settings, "exchange").get("collective") != "hierarchical":
        return 1
    return block_size(settings, ranks, machines, "exchange")


def lie_across(one, other):
    """Blocks of `one` and of `other` ranks: neither are several of the others."""
    return one % other != 0 and other % one != 0


def copies(ranks, found, block=None, adding=1):
    """Encoded copies of the network that all ranks send together in the steps of `found`. `block`: ranks of a
    block of hierarchical_local_sgd; `adding`: of one that adds its gradients first, as the collective hierarchical
    does."""

    def of_exchange(ranks, adding):
        blocks = ranks // adding  # one copy of each travels to the owners and back, and is handed on
        return 2 * (blocks - 1) + ranks - blocks

    return _of_all(of_exchange, ranks, found, block, adding)


def float32_copies(ranks, found, block=None, adding=1):
    """Those that blocks add: gradients in float32, whatever the codec."""
    return _of_all(lambda ranks, adding: ranks - ranks // adding, ranks, found, block, adding)


def _of_all(of_exchange, ranks, found, block, adding):
    total = (found.gradients + found.everywhere) * of_exchange(ranks, adding)
    if found.within:
        within = adding if adding < block else 1  # no more than one block adds its gradients: as reduce_broadcast
        total += found.within * (ranks // block) * of_exchange(block, within)
    return total
