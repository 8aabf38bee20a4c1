"""What the user can mend."""


class UserError(Exception):
    """One line that says what is wrong and where. The command prints it and ends with status 2."""


class FileError(UserError):
    """A file that cannot be read or written; the message names it and the cause."""
