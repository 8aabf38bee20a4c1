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


@dataclass(frozen=True)
class Host:
    """What the exchange's thread needs."""

    encode: float  # s per value
    decode: float
    message: float = 20e-6  # s per message, sent or received
    copy: float = 0.2e-9  # s per byte, sent or received
    share: float = 0.0  # of the coding beside computing, that computing waits for: they share cores


@dataclass(frozen=True)
class Times:
    end: float  # when the last value is decoded
    coding: float
    sending: float  # that the link is busy


class Flight:
    def __init__(self, unit):
        self.unit = unit
        self.stage = "reduce"
        self.at = 0.0  # when the messages of its next stage have arrived


def simulate(units, ready, ranks, link, host):
    """`ready`: when each unit's last tensor is final. Times in seconds from the start of the step."""
    share = (ranks - 1) / ranks  # of a unit's messages and bytes, that a rank sends or receives in one round
    clock = sending = coding = free = 0.0  # free: when the link has sent all it was given
    flights, waiting = [], 0

    def send(unit):
        nonlocal free, sending
        seconds = link.seconds(share * unit.wire_bytes)
        sending += seconds
        free = max(free, clock - link.seconds(link.burst) / Link.HEADERS) + seconds
        return max(clock, free) + (link.latency if ranks > 1 else 0.0)

    def work(seconds, unit, directions):
        """Coding, and the messages of so many directions: encoding sends, reducing receives and sends,
        decoding receives."""
        nonlocal clock, coding
        coding += seconds
        moved = host.message * unit.messages + host.copy * unit.wire_bytes
        clock += seconds + directions * share * moved

    while flights or waiting < len(units):
        able = next((f for f in flights if f.at <= clock), None)
        can_start = waiting < len(units) and len(flights) < IN_FLIGHT and ready[waiting] <= clock
        if able:
            unit = able.unit
            if able.stage == "reduce":
                work(unit.elements * (host.decode + host.encode / ranks), unit, 2)
                able.at, able.stage = send(unit), "decode"
            else:
                work(unit.elements * host.decode, unit, 1)
                flights.remove(able)
        elif can_start:
            flight = Flight(units[waiting])
            waiting += 1
            work(flight.unit.elements * host.encode, flight.unit, 1)
            flight.at = send(flight.unit)
            flights.append(flight)
        else:
            times = [f.at for f in flights]
            if waiting < len(units) and len(flights) < IN_FLIGHT:
                times.append(ready[waiting])
            clock = min(times)
    return Times(clock, coding, sending)
