"""Files that are read or written whole; errors name the file and the cause."""

import errno
import json
import os

import yaml
from errors import FileError


def read_text(path, encoding="utf-8", newline=None, most=None):
    """A file of at most `most` bytes. Raises FileError."""
    try:
        if most is not None and os.path.getsize(path) > most:
            raise FileError(f"{path}: {os.path.getsize(path)} bytes; at most {most} are read")
        with open(path, encoding=encoding, newline=newline) as file:
            return file.read(-1 if most is None else most + 1)  # some files have no size
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path}: not text in UTF-8") from None


def read_yaml(path):
    """A map. Raises FileError."""
    text = read_text(path)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise FileError(f"{path}{line}: not YAML: {yaml_problem(error)}") from None
    except RecursionError:
        raise FileError(f"{path}: nested too deeply") from None
    if not isinstance(value, dict):
        raise FileError(f"{path}: not a map")
    return value


def yaml_problem(error):
    """What a YAMLError found; its own text has several lines."""
    return getattr(error, "problem", None) or getattr(error, "reason", None) or " ".join(str(error).split())


def read_json(path):
    """An object; empty where the file is not there or not whole."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def replace(path, content):
    """Bytes, whole or not at all; behind a symbolic link its file. Raises OSError."""
    target = os.path.realpath(path)
    beside = f"{target}.new"
    try:
        if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
            raise OSError(errno.EINVAL, "is not a regular file")  # a device would be gone
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except OSError as error:
        try:
            os.unlink(beside)
        except OSError:
            pass
        raise OSError(error.errno, error.strerror, path) from None  # an error of writing has no name


def write_text(path, text):
    """Whole or not at all. Raises FileError."""
    try:
        replace(path, text.encode())
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from None
