"""A figure or a table of the report."""

from dataclasses import dataclass

import pandas


@dataclass
class Item:
    name: str  # of its files
    title: str
    caption: str
    data: pandas.DataFrame  # the figure's numbers, or the table
    figure: object = None  # matplotlib's; none for a table
