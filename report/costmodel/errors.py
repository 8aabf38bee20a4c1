"""What the user can mend."""


class CostModelError(Exception):
    """One line that says what is wrong and where; the program then ends with status 2."""
