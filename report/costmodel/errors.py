"""Mistakes in what the cost model is given."""

from errors import UserError


class CostModelError(UserError):
    """In cells, options, configurations and run folders."""
