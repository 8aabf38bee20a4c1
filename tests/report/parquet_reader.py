"""An independent reader of Parquet, by the format's and Thrift's specifications."""

import io
import struct


def varint(data):
    value = shift = 0
    while True:
        byte = data.read(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7


def zigzag(data):
    value = varint(data)
    return value >> 1 ^ -(value & 1)


def compact(data, kind):
    """A value of Thrift's compact protocol, by its specification: structures become {field: value}."""
    if kind in (4, 5, 6):
        return zigzag(data)
    if kind == 8:
        return data.read(varint(data))
    if kind == 9:
        head = data.read(1)[0]
        count = head >> 4 if head >> 4 < 15 else varint(data)
        return [compact(data, head & 15) for _ in range(count)]
    assert kind == 12, kind
    fields, number = {}, 0
    while head := data.read(1)[0]:
        number = number + (head >> 4) if head >> 4 else zigzag(data)
        fields[number] = compact(data, head & 15)
    return fields


def read_parquet(content):
    """Columns by name."""
    assert content[:4] == content[-4:] == b"PAR1"
    size = struct.unpack("<I", content[-8:-4])[0]
    footer = compact(io.BytesIO(content[-8 - size : -8]), 12)
    columns = {}
    (group,) = footer[4]
    for chunk in group[1]:
        meta = chunk[3]
        data = io.BytesIO(content[meta[9] : meta[9] + meta[7]])
        page = compact(data, 12)
        body = io.BytesIO(data.read())
        assert page[2] == page[3] == len(body.getvalue())
        levels = io.BytesIO(body.read(struct.unpack("<I", body.read(4))[0]))
        present = []
        while len(present) < footer[3]:
            count = varint(levels)
            assert count % 2 == 0
            present += [levels.read(1)[0]] * (count // 2)
        n = sum(present)
        if meta[1] == 0:
            bits = int.from_bytes(body.read((n + 7) // 8), "little")
            values = [bool(bits >> i & 1) for i in range(n)]
        elif meta[1] in (2, 5):
            values = list(struct.unpack(f"<{n}{'q' if meta[1] == 2 else 'd'}", body.read(8 * n)))
        else:
            values = [body.read(struct.unpack("<I", body.read(4))[0]).decode() for _ in range(n)]
        assert not body.read()
        values = iter(values)
        columns[meta[3][0].decode()] = [next(values) if p else None for p in present]
    return columns
