"""Cells of a study: CSV files with a row per measured (or asked) configuration."""

import csv
import io
import math
from dataclasses import dataclass

import files
from costmodel.errors import CostModelError
from costmodel.networks import CODECS, study_network

COLUMNS = ("machine", "network", "transport", "codec", "ranks", "batch")
TRANSPORTS = ("mpi", "nccl")
LARGEST = {"ranks": 1024, "batch": 1 << 24}


@dataclass(frozen=True)
class Cell:
    machine: str
    network: str
    transport: str
    codec: str
    ranks: int
    batch: int  # global
    samples_per_s: float | None
    where: str = ""  # file:line

    @property
    def local_batch(self):
        return self.batch // self.ranks

    @property
    def seconds(self):
        """Of a step."""
        return self.batch / self.samples_per_s

    @property
    def name(self):
        return f"{self.network} {self.transport} {self.codec} at {self.ranks}"


@dataclass(frozen=True)
class Table:
    header: list
    rows: list  # dictionaries, as read
    cells: list


def read(path, measured):
    """A Table; with `measured` every row must have samples_per_s."""
    rows = read_rows(path)
    line, header = rows[0]
    header = [field.strip() for field in header]
    if not any(field.strip() for field in header):
        raise CostModelError(
            f"{path}:{line}: the first line must name the columns: {', '.join(COLUMNS)}, samples_per_s"
        )
    for i, column in enumerate(header):
        if column in header[:i]:
            raise CostModelError(f"{path}:{line}: two columns are named '{column}'")
    missing = [c for c in COLUMNS + (("samples_per_s",) if measured else ()) if c not in header]
    if missing:
        raise CostModelError(f"{path}:{line}: no column {', '.join(missing)}")
    found, cells = [], []
    for number, row in rows[1:]:
        where = f"{path}:{number}"
        if len(row) != len(header) and not (
            not measured and len(row) == len(header) - 1 and header[-1] == "samples_per_s"
        ):
            raise CostModelError(f"{where}: {len(row)} fields, but line {line} names {len(header)} columns")
        fields = dict(zip(header, [field.strip() for field in row]))
        found.append(fields)
        cells.append(read_cell(fields, where, measured))
    if not cells:
        raise CostModelError(f"{path}:{line}: no cell below the names of the columns")
    return Table(header, found, cells)


def read_rows(path):
    """(line number, fields) of each line that is neither empty nor a comment (#)."""
    text = files.read_text(path, encoding="utf-8-sig", newline="")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        for row in reader:
            if row and not row[0].startswith("#"):
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise CostModelError(f"{path}:{reader.line_num}: not CSV: {error}") from None
    if not rows:
        raise CostModelError(f"{path}:1: empty; expected the columns {', '.join(COLUMNS)}, samples_per_s")
    return rows


def read_cell(fields, where, measured):
    for column, known in (("transport", TRANSPORTS), ("codec", tuple(CODECS))):
        if fields[column] not in known:
            raise CostModelError(f"{where}: unknown {column} '{fields[column]}'; expected {', '.join(known)}")
    if not fields["machine"]:
        raise CostModelError(f"{where}: no machine")
    try:
        study_network(fields["network"])
    except CostModelError as error:
        raise CostModelError(f"{where}: {error}") from None
    ranks, batch = (whole_number(fields, column, where) for column in ("ranks", "batch"))
    if batch % ranks:
        raise CostModelError(f"{where}: batch {batch} is not a multiple of ranks {ranks}")
    speed = positive_number(fields, where) if measured else None
    return Cell(
        fields["machine"], fields["network"], fields["transport"], fields["codec"], ranks, batch, speed, where
    )


def whole_number(fields, column, where):
    text = fields[column]
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= LARGEST[column]:
        return int(text)
    raise CostModelError(f"{where}: {column} '{text}' is not a whole number from 1 to {LARGEST[column]}")


def positive_number(fields, where):
    text = fields["samples_per_s"]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and 1e-6 < value < 1e12:
        return value
    raise CostModelError(f"{where}: samples_per_s '{text}' is not a positive number")


def write(path, table, predicted):
    """The rows of `table`, in its order, with the predicted samples_per_s.
    The file appears whole or not at all.
    """
    header = table.header + ([] if "samples_per_s" in table.header else ["samples_per_s"])
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, header, lineterminator="\n", restval="")
    writer.writeheader()
    for fields, value in zip(table.rows, predicted):
        writer.writerow({**fields, "samples_per_s": f"{value:.6g}"})
    files.write_text(path, text.getvalue())
