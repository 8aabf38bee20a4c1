"""What `lpsgd predict CONFIG` compares, for each codec: ways to synchronise (every step, and the configured one or
those of --sync), and the collectives reduce_broadcast and hierarchical, if that is configured.
"""

from dataclasses import dataclass, replace

import program
import run_length
import synchronisation
import words
import yaml
from configuration import section
from yaml import YAMLError

from costmodel import fragments, links, local_steps, pipeline
from costmodel.errors import CostModelError


@dataclass(frozen=True)
class Way:
    settings: dict  # the configuration with it
    sync: str = ""  # empty: an exchange in every step
    machine: int = 1  # ranks of one; 1 also where that is not known
    add: bool = False  # they add their gradients first: the collective hierarchical

    @property
    def is_usual(self):
        """That which the others are compared with."""
        return not self.sync and not self.add

    @property
    def collective(self):
        return "hierarchical" if self.add else "reduce_broadcast"

    def exchanges(self, ranks, local_batch):
        """Of the whole run."""
        samples = run_length.samples(self.settings)
        per_epoch = max(1, int(samples // (ranks * local_batch))) if samples else None
        epochs = max(1, run_length.epochs(self.settings))
        return synchronisation.exchanges(self.settings, epochs, per_epoch)

    @property
    def streaming(self):
        return fragments.streaming_of(self.settings)

    def blocks(self, ranks, link):
        """None without blocks, or where they do not divide the ranks: see problem()."""
        size = synchronisation.block_size(self.settings, ranks, [])
        return local_steps.Blocks(size, link) if size else None

    def machines(self, link):
        return pipeline.Machines(self.machine, link, self.add)

    def problem(self, ranks):
        """Why so many ranks cannot have it, or nothing."""
        if ranks % self.machine:
            return f"{words.counted(ranks, 'rank')} cannot be divided into blocks of {self.machine}"
        size = synchronisation.block_size(self.settings, ranks, [])
        if self.is_of_blocks and not size:
            return f"{self.sync}: {ranks} ranks cannot be divided into such blocks"
        if self.is_of_blocks and synchronisation.lie_across(size, self.machine):
            return f"{self.sync}: its blocks lie across those of the exchange, of {self.machine} ranks"
        return ""

    @property
    def is_of_blocks(self):
        return synchronisation.kind_of(self.settings) == "hierarchical_local_sgd"


def ways_of(options, config):
    """The first one is the usual one."""
    machine = machine_of(options, config)
    collectives = (False, True) if machine > 1 else (False,)
    given = [sync_of(options, text) for text in options.sync] or [section(config, "sync")]
    every = {**config, "sync": {"kind": "every_step"}}
    ways = [Way(every, "", machine, add) for add in collectives]
    for sync in given:
        way = Way({**config, "sync": sync}, words.sync_text(sync), machine)
        if synchronisation.kind_of(way.settings) == "every_step":
            continue
        if way.is_of_blocks and not isinstance(sync.get("ranks_per_block"), int):
            numbered = ", ".join(f"{k}: {v}" for k, v in {**sync, "ranks_per_block": "N"}.items())
            raise CostModelError(
                f"{options.config}: sync.ranks_per_block: how many ranks a node has is not known here; "
                f"give the number: --sync '{{{numbered}}}'"
            )
        ways += [replace(way, add=add) for add in collectives]
    return ways


def machine_of(options, config):
    """Ranks of a block of the collective hierarchical; 1 with other collectives, as which blocks of 1 exchange."""
    exchange = section(config, "exchange")
    if exchange.get("collective") != "hierarchical":
        return 1
    size = synchronisation.whole(exchange, "ranks_per_block", None)
    if size is None:
        raise CostModelError(
            f"{options.config}: exchange.ranks_per_block: how many ranks a node has is not known here; "
            f"give the number: --set exchange.ranks_per_block=N"
        )
    return size


def sync_of(options, text):
    """A map as in the configuration, which the program checks."""
    try:
        sync = yaml.safe_load(text)
    except YAMLError:
        sync = None
    if sync == "every_step":
        return {"kind": sync}
    if not isinstance(sync, dict):
        raise CostModelError(f"--sync: '{text}' is not a map such as {{kind: local_sgd, steps: 8}}")
    program.show(options.config, (*options.set, f"sync={text}"))
    return sync


def block_link(options):
    return links.link_of(options.block_link, "--block-link") if options.block_link else pipeline.NO_LINK
