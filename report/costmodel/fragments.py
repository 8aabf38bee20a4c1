"""Groups of tensors that local steps synchronise in turn, while ranks train on: docs/local-sgd.md,
trainer/fragments.cc, trainer/local_step.cc.
"""

from dataclasses import dataclass

import synchronisation
from configuration import section

from costmodel.errors import CostModelError

AGREEMENT = 1.0  # seconds from one question between all ranks to the next: trainer/step_agreement.h
# A question is put off for an exchange to so many intervals at most, and for so many seconds: trainer/step_agreement.cc
PATIENCE, LONGEST = 10, 30.0


@dataclass(frozen=True)
class Streaming:
    """Sections `sync` and `exchange` of a configuration."""

    fragments: int = 1
    delay: int = 0  # steps that ranks train while an exchange is on its way
    is_asked: bool = True  # a question between all ranks waits for what is on its way; not over NCCL

    def seen(self, seconds, step, interval):
        """Of an exchange of so many seconds, those that a rank waits for it. `step`: seconds of a step;
        `interval`: steps between two questions, the last of which may be an interval before the exchange."""
        hidden = self.delay
        if self.is_asked:
            most = LONGEST // step - 1 if step > 0 else hidden
            hidden = min(hidden, (PATIENCE - 1) * interval, max(0, most))
        return max(0.0, seconds - hidden * step)


def streaming_of(settings):
    sync, exchange = section(settings, "sync"), section(settings, "exchange")
    return Streaming(
        synchronisation.whole(sync, "fragments", 1),
        synchronisation.whole(sync, "delay", 0),
        exchange.get("transport", "mpi") != "nccl",
    )


def question_interval(step):
    """Steps between two questions of ranks whose steps take so many seconds."""
    return max(1, int(AGREEMENT / step)) if step > 0 else 1


def fragments_of(elements, count):
    """Ranges of tensors, from each tensor's number of values: as equal parts as whole tensors allow."""
    if count > len(elements):
        raise CostModelError(
            f"sync.fragments: {count} fragments need as many tensors, and the network has {len(elements)}"
        )
    before = [0]
    for n in elements:
        before.append(before[-1] + n)
    found, first = [], 0
    for f in range(1, count + 1):
        share = before[-1] * f / count
        most = len(elements) - (count - f)  # each of the others has a tensor
        last = most if f == count else first + 1
        while last < most and abs(before[last + 1] - share) < abs(before[last] - share):
            last += 1
        found.append(range(first, last))
        first = last
    return found
