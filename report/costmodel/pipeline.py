"""One step of lpsgd's exchange, event by event, seen from one rank; all ranks are alike."""

from dataclasses import dataclass

IN_FLIGHT = 4  # units


@dataclass(frozen=True)
class Link:
    bandwidth: float  # bits a second, each direction
    latency: float  # seconds, one way
    burst: float = 0.0  # bytes that leave at once after a pause

    HEADERS = 1514 / 1448  # of TCP/IP over Ethernet

    def seconds(self, payload):
        return 8 * payload * self.HEADERS / self.bandwidth


NO_LINK = Link(1e13, 0.0)


@dataclass(frozen=True)
class Machines:
    """Where the ranks of an exchange are."""

    size: int = 1  # ranks of one; 1 also where that is not known
    link: Link | None = NO_LINK  # between these; None: a rank's link to the others
    add: bool = False  # their gradients first, as the collective hierarchical does

    def within(self, ranks, link):
        """Of a block of hierarchical_local_sgd of so many ranks, which have this link where the block is on one machine.
        There its exchange is always that of reduce_broadcast."""
        return self if self.size == 1 or self.size < ranks else Machines(ranks, link)


SINGLE = Machines()


@dataclass(frozen=True)
class Host:
    """What the exchange's thread needs."""

    encode: float  # s per value
    decode: float
    message: float = 20e-6  # s per message, sent or received
    copy: float = 0.2e-9  # s per byte, sent or received
    share: float = 0.0  # of the coding beside computing, that computing waits for: they share cores
    divide: float = 0.0  # s per value that is copied into a share of the block's gradients
    add: float = 0.0  # s per value of such a share
    ordered: bool = False  # all that a stage sends is one call, on a stream where each waits for the one before


@dataclass(frozen=True)
class Times:
    end: float  # when the last value is decoded
    coding: float
    sending: float  # that the link is busy


@dataclass(frozen=True)
class Stage:
    """What a rank does with a unit once all messages of the stage before are here."""

    coding: float  # seconds
    sent: tuple = (0.0, 0.0)  # bytes to other machines, and within the own one
    messages: float = 0.0  # sent


def stages_of(unit, ranks, host, machines):
    """All but the last send something."""
    n, wire, count = unit.elements, unit.wire_bytes, ranks // machines.size
    if not machines.add:
        within = (machines.size - 1) / ranks
        part = 1 - machines.size / ranks
        round_ = (wire * part, wire * within), unit.messages * (part + within)
        return [
            Stage(n * host.encode, *round_),
            Stage(n * (host.decode + host.encode / ranks), *round_),
            Stage(n * host.decode),
        ]
    own, others = n / machines.size, (count - 1) / count  # the values at one place; of its owners
    contribution = (wire / machines.size * others, 0.0), unit.messages / machines.size * others
    members = machines.size - 1
    return [
        Stage(n * host.divide, (0.0, 4 * own * members), members),
        Stage(n * host.add + own * host.encode, *contribution),
        Stage(own * host.decode + n / ranks * host.encode, *contribution),
        Stage(0.0, (0.0, wire / machines.size * members), members),
        Stage(n * host.decode),
    ]


class Flight:
    def __init__(self, stages):
        self.stages = stages
        self.next = 0
        self.at = 0.0  # when the messages of its next stage have arrived


def simulate(units, ready, ranks, link, host, machines=SINGLE):
    """`ready`: when each unit's last tensor is final. Times in seconds from the start of the step."""
    links = (link, machines.link or link)
    free = [0.0, 0.0]  # when each link has sent all it was given
    clock = sending = coding = 0.0
    flights, waiting = [], 0

    def call(stage):
        """When all that the stage sends has arrived. Until then the stream takes no other call."""
        nonlocal sending
        seconds = [own.seconds(payload) for own, payload in zip(links, stage.sent)]
        if machines.link is None:
            seconds = [sum(seconds)]
        sending += seconds[0]
        latency = max((own.latency for own, payload in zip(links, stage.sent) if payload), default=0.0)
        free[0] = max(free[0], clock) + host.message + max(seconds) + latency
        return free[0]

    def send(payload, which):
        """When it arrives."""
        nonlocal sending
        own, queue = links[which], which if machines.link else 0
        seconds = own.seconds(payload)
        if queue == 0:
            sending += seconds
        free[queue] = max(free[queue], clock - own.seconds(own.burst) / Link.HEADERS) + seconds
        return max(clock, free[queue]) + (own.latency if ranks > 1 else 0.0)

    def go_on(flight):
        """Coding and messages of the next stage: those that have come, and those that it sends."""
        nonlocal clock, coding
        stage = flight.stages[flight.next]
        coding += stage.coding
        clock += stage.coding
        if host.ordered:
            flight.at = call(stage) if stage.messages else clock
        else:
            moved = [stage] + [flight.stages[flight.next - 1]] * (flight.next > 0)
            clock += sum(host.message * s.messages + host.copy * sum(s.sent) for s in moved)
            flight.at = max([clock, *(send(payload, i) for i, payload in enumerate(stage.sent) if payload)])
        flight.next += 1
        return flight.next < len(flight.stages)

    while flights or waiting < len(units):
        able = next((f for f in flights if f.at <= clock), None)
        can_start = waiting < len(units) and len(flights) < IN_FLIGHT and ready[waiting] <= clock
        if able:
            if not go_on(able):
                flights.remove(able)
        elif can_start:
            flights.append(Flight(stages_of(units[waiting], ranks, host, machines)))
            waiting += 1
            go_on(flights[-1])
        else:
            times = [f.at for f in flights]
            if waiting < len(units) and len(flights) < IN_FLIGHT:
                times.append(ready[waiting])
            clock = min(times)
    return Times(clock, coding, sending)
