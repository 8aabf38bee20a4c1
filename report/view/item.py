"""A figure or a table of the report."""

import re
from dataclasses import dataclass

import pandas


def rounded(value, decimals=None):
    """To so many decimals; without them to four significant digits. None stays None."""
    if value is None:
        return None
    return float(f"{value:.4g}") if decimals is None else round(value, decimals)


@dataclass
class Item:
    name: str  # of its files; what is no letter, digit, dot or dash of a network's name becomes a dash
    title: str
    caption: str
    data: pandas.DataFrame  # the figure's numbers, or the table
    figure: object = None  # matplotlib's; none for a table

    def __post_init__(self):
        self.name = re.sub(r"[^\w.-]+", "-", self.name, flags=re.ASCII)
