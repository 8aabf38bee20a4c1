"""The mean step of a run with local steps, in which only some steps have an exchange: docs/local-sgd.md."""

from dataclasses import dataclass, fields, replace

from costmodel import fragments, pipeline, plan, run_folder, scaling

SUMMED = [
    field.name for field in fields(scaling.Step) if field.name not in ("ranks", "codec", "local_batch")
]


@dataclass(frozen=True)
class Blocks:
    """Of hierarchical_local_sgd."""

    ranks: int  # of a block
    link: pipeline.Link = pipeline.NO_LINK  # within it


ALL_AT_ONCE = fragments.Streaming()


def mean_step(
    shown, codec, ranks, local_batch, computing, link, host, overlap, pack_bytes, exchanges, blocks=None,
    streaming=ALL_AT_ONCE, machines=pipeline.SINGLE,
):
    """A scaling.Step. `exchanges`: how often ranks exchange in how many steps, with all fragments' turns as one;
    `blocks` are those of hierarchical_local_sgd; for the rest see scaling.predict."""
    every = scaling.predict(shown, codec, ranks, local_batch, computing, link, host, overlap, pack_bytes, machines)
    if exchanges.gradients == exchanges.steps:
        return every
    alone = scaling.Step(ranks, codec, local_batch, every.computation, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0)
    local = exchanges.steps - exchanges.gradients
    parts = [(exchanges.gradients, every), (local, alone)]
    exchange = Exchange(shown, alone, computing, host, pack_bytes, local / max(1, exchanges.total - exchanges.gradients))
    if exchanges.within:
        of_block = blocks.link if machines.size == 1 else link
        own = machines.within(blocks.ranks, blocks.link)
        parts.append((exchanges.within, exchange.synchronisation(blocks.ranks, of_block, own)))
    interval = fragments.question_interval(alone.computation)
    while True:
        everywhere = exchange.synchronisation(ranks, link, machines, streaming, interval)
        step = mean([*parts, (exchanges.everywhere, everywhere)], alone, exchanges.steps)
        fewer = fragments.question_interval(step.seconds)
        if fewer >= interval:
            return step
        interval = fewer  # steps that wait are longer


def mean(parts, step, steps):
    """Of pairs of a count and a step, over so many steps."""
    return replace(step, **{name: sum(n * getattr(part, name) for n, part in parts) / steps for name in SUMMED})


@dataclass(frozen=True)
class Exchange:
    """Of changes of weights. `step`: a local step; `apart`: steps between two synchronisations."""

    shown: dict
    step: scaling.Step
    computing: scaling.Computing
    host: pipeline.Host
    pack_bytes: int
    apart: float

    def synchronisation(self, members, link, machines, streaming=ALL_AT_ONCE, interval=1):
        """What it adds to the steps, where so many ranks synchronise with each other: the exchanges of all fragments,
        which nothing hides but the steps of a delay, and waiting for the last rank. `interval`: see
        fragments.Streaming."""
        tensors = plan.planned(self.shown)
        turns = fragments.fragments_of([t.elements for t in tensors], streaming.fragments)
        update = run_folder.UPDATES * self.computing.update
        alone = replace(self.step, computation=update, exchanges=float(len(turns)))
        if members == 1 and self.step.codec == "{kind: none}":
            return alone
        added = [self.turn(members, link, machines, streaming, interval, tensors, numbers) for numbers in turns]
        sums = {name: sum(one[name] for one in added) for name in added[0]}
        wire = sum(t.wire_bytes for t in tensors)
        sent, to_others = plan.bytes_of_a_rank(wire, self.shown["parameters"], members, machines)
        return replace(alone, bytes_per_rank=sent, bytes_to_others=to_others, **sums)

    def turn(self, members, link, machines, streaming, interval, tensors, numbers):
        """Of the tensors with these numbers."""
        units = plan.make_plan(tensors, members, self.pack_bytes, numbers)
        # The link has rested since the turn before, so that a burst leaves at once.
        pause = self.apart / streaming.fragments * self.step.computation
        times = pipeline.simulate(units, [pause] * len(units), members, link, self.host, machines)
        end, late = times.end - pause, self.computing.waits(members) * self.step.computation
        exposed = streaming.seen(end, self.step.computation, interval)
        waiting = streaming.seen(end + late, self.step.computation, interval) - exposed
        hidden = max(0.0, times.coding - exposed) if streaming.delay else 0.0
        return {
            "coding": times.coding,
            "link_busy": times.sending,
            "exposed": exposed,
            "waiting": waiting + self.host.share * hidden,
            "messages": plan.messages(units, members, machines) * (self.step.ranks // members),
        }
