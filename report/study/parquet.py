"""A table as a Parquet file: one row group, plain encoding, uncompressed, every column optional.

Debian has no Parquet library for Python. The format is https://parquet.apache.org/docs/file-format; its
headers are Thrift structures, which Debian's python3-thrift writes.
"""

import struct

from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

MAGIC = b"PAR1"
BOOLEAN, INT64, DOUBLE, BYTE_ARRAY = 0, 2, 5, 6  # physical types
OPTIONAL, UTF8, PLAIN, RLE, UNCOMPRESSED, DATA_PAGE = 1, 0, 0, 3, 0, 0


def table(columns, rows):
    """The file's bytes; rows are dictionaries, and a value that is None or absent is null."""
    out = bytearray(MAGIC)
    schema = [[(4, TType.STRING, "schema"), (5, TType.I32, len(columns))]]
    chunks = []
    for name in columns:
        values = [row.get(name) for row in rows]
        kind = physical_type(values)
        text = [(6, TType.I32, UTF8)] if kind == BYTE_ARRAY else []
        schema.append([(1, TType.I32, kind), (3, TType.I32, OPTIONAL), (4, TType.STRING, name), *text])
        at = len(out)
        out += page(kind, values)
        size = len(out) - at
        meta = [
            (1, TType.I32, kind),
            (2, TType.LIST, (TType.I32, [PLAIN, RLE])),
            (3, TType.LIST, (TType.STRING, [name])),
            (4, TType.I32, UNCOMPRESSED),
            (5, TType.I64, len(values)),
            (6, TType.I64, size),
            (7, TType.I64, size),
            (9, TType.I64, at),
        ]
        chunks.append([(2, TType.I64, at), (3, TType.STRUCT, meta)])
    group = [
        (1, TType.LIST, (TType.STRUCT, chunks)),
        (2, TType.I64, len(out) - len(MAGIC)),
        (3, TType.I64, len(rows)),
    ]
    footer = thrift(
        [
            (1, TType.I32, 1),
            (2, TType.LIST, (TType.STRUCT, schema)),
            (3, TType.I64, len(rows)),
            (4, TType.LIST, (TType.STRUCT, [group])),
            (6, TType.STRING, "lpsgd"),
        ]
    )
    return bytes(out) + footer + struct.pack("<I", len(footer)) + MAGIC


def physical_type(values):
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return BOOLEAN
    if kinds == {int} and all(-(2**63) <= v < 2**63 for v in values if v is not None):
        return INT64
    return DOUBLE if kinds and kinds <= {int, float} else BYTE_ARRAY


def page(kind, values):
    present = [value for value in values if value is not None]
    levels = definition_levels(values)
    body = struct.pack("<I", len(levels)) + levels + plain(kind, present)
    header = [(1, TType.I32, len(values)), (2, TType.I32, PLAIN), (3, TType.I32, RLE), (4, TType.I32, RLE)]
    return (
        thrift(
            [
                (1, TType.I32, DATA_PAGE),
                (2, TType.I32, len(body)),
                (3, TType.I32, len(body)),
                (5, TType.STRUCT, header),
            ]
        )
        + body
    )


def definition_levels(values):
    """Runs of equal bits: a varint of twice the length, then the bit."""
    out = bytearray()
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or (values[end] is None) != (values[start] is None):
            count = 2 * (end - start)
            while count >= 0x80:
                out.append(count & 0x7F | 0x80)
                count >>= 7
            out += bytes((count, values[start] is not None))
            start = end
    return bytes(out)


def plain(kind, values):
    if kind == BOOLEAN:
        bits = sum(1 << i for i, value in enumerate(values) if value)
        return bits.to_bytes((len(values) + 7) // 8, "little")
    if kind == INT64:
        return struct.pack(f"<{len(values)}q", *values)
    if kind == DOUBLE:
        return struct.pack(f"<{len(values)}d", *values)
    texts = [str(value).encode() for value in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def thrift(fields):
    """A structure's bytes: fields are (number, type, value), in ascending order."""
    buffer = TMemoryBuffer()
    write_struct(TCompactProtocol(buffer), fields)
    return buffer.getvalue()


def write_struct(protocol, fields):
    protocol.writeStructBegin("")
    for number, kind, value in fields:
        protocol.writeFieldBegin("", kind, number)
        write_value(protocol, kind, value)
        protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()


def write_value(protocol, kind, value):
    if kind == TType.STRUCT:
        write_struct(protocol, value)
    elif kind == TType.LIST:
        item, items = value
        protocol.writeListBegin(item, len(items))
        for each in items:
            write_value(protocol, item, each)
        protocol.writeListEnd()
    else:
        write = {
            TType.I32: protocol.writeI32,
            TType.I64: protocol.writeI64,
            TType.STRING: protocol.writeString,
        }[kind]
        write(value)
