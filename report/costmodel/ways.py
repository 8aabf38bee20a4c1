"""The ways to synchronise that `lpsgd predict CONFIG` compares: every step, and the configured one or those
of --sync.
"""

from dataclasses import dataclass

import program
import run_length
import synchronisation
import words
import yaml
from configuration import section
from yaml import YAMLError

from costmodel import fragments, links, local_steps, scaling
from costmodel.errors import CostModelError


@dataclass(frozen=True)
class Way:
    label: str  # empty: an exchange in every step
    settings: dict  # the configuration with it

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

    def problem(self, ranks):
        """Why so many ranks cannot have it, or nothing."""
        if self.is_of_blocks and not synchronisation.block_size(self.settings, ranks, []):
            return f"{self.label}: {ranks} ranks cannot be divided into such blocks"
        return ""

    @property
    def is_of_blocks(self):
        return synchronisation.kind_of(self.settings) == "hierarchical_local_sgd"


def ways_of(options, config):
    """The first one is every_step."""
    given = [sync_of(options, text) for text in options.sync] or [section(config, "sync")]
    ways = [Way("", {**config, "sync": {"kind": "every_step"}})]
    for sync in given:
        way = Way(words.sync_text(sync), {**config, "sync": sync})
        if synchronisation.kind_of(way.settings) == "every_step":
            continue
        if way.is_of_blocks and not isinstance(sync.get("ranks_per_block"), int):
            numbered = ", ".join(f"{k}: {v}" for k, v in {**sync, "ranks_per_block": "N"}.items())
            raise CostModelError(
                f"{options.config}: sync.ranks_per_block: how many ranks a node has is not known here; "
                f"give the number: --sync '{{{numbered}}}'"
            )
        ways.append(way)
    return ways


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
    return links.link_of(options.block_link, "--block-link") if options.block_link else scaling.NO_LINK
