"""The mean step of a run with local steps, in which only some steps have an exchange: docs/local-sgd.md."""

from dataclasses import dataclass, fields, replace

from costmodel import pipeline, plan, run_folder, scaling

SUMMED = [
    field.name for field in fields(scaling.Step) if field.name not in ("ranks", "codec", "local_batch")
]


@dataclass(frozen=True)
class Blocks:
    """Of hierarchical_local_sgd."""

    ranks: int  # of a block
    link: pipeline.Link = scaling.NO_LINK  # within it


def mean_step(
    shown, codec, ranks, local_batch, computing, link, host, overlap, pack_bytes, exchanges, blocks=None
):
    """A scaling.Step. `exchanges`: how often ranks exchange in how many steps; for the rest see
    scaling.predict."""
    every = scaling.predict(shown, codec, ranks, local_batch, computing, link, host, overlap, pack_bytes)
    if exchanges.gradients == exchanges.steps:
        return every
    alone = scaling.Step(ranks, codec, local_batch, every.computation, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)
    parts = [
        (exchanges.gradients, every),
        (exchanges.steps - exchanges.gradients, alone),
        (exchanges.everywhere, synchronisation(shown, alone, ranks, computing, link, host, pack_bytes)),
    ]
    if exchanges.within:
        within = synchronisation(shown, alone, blocks.ranks, computing, blocks.link, host, pack_bytes)
        parts.append((exchanges.within, within))
    means = {
        name: sum(count * getattr(step, name) for count, step in parts) / exchanges.steps for name in SUMMED
    }
    return replace(alone, **means)


def synchronisation(shown, step, members, computing, link, host, pack_bytes):
    """What it adds to a step, where so many ranks synchronise with each other: an exchange that nothing
    hides, and waiting for the last of them."""
    alone = replace(step, computation=run_folder.UPDATES * computing.update, exchanges=1.0)
    if members == 1 and step.codec == "{kind: none}":
        return alone
    tensors = plan.planned(shown)
    units = plan.make_plan(tensors, members, pack_bytes)
    times = pipeline.simulate(units, [0.0] * len(units), members, link, host)
    return replace(
        alone,
        coding=times.coding,
        link_busy=times.sending,
        exposed=times.end,
        waiting=computing.waits(members) * step.computation,
        messages=plan.messages(units, members) * (step.ranks // members),
        bytes_per_rank=2 * sum(t.wire_bytes for t in tensors) * (members - 1) / members,
    )
