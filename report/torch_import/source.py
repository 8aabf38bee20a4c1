"""Makes the module that the command line names, and loads its weights."""

import ast
import importlib
import importlib.util
import os
import sys

import torch
from errors import UserError
from torch import nn


def make(name, arguments, seed):
    """The module of 'FILE.py:NAME' or 'package.module:NAME', where NAME is a class, a function or a module."""
    file, _, attribute = name.rpartition(":")
    if not file or not attribute:
        raise UserError(f"'{name}' is neither FILE.py:NAME nor package.module:NAME")
    torch.manual_seed(seed)
    found = _imported(file)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UserError(f"{file} has no '{part}'{_near(part, found)}")
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        if arguments:
            raise UserError(f"{name} is a module already, so --with gives arguments to nothing")
        return found
    if not callable(found):
        raise UserError(f"{name} is no module, and nothing that makes one: {type(found).__name__}")
    try:
        made = found(**arguments)
    except Exception as error:  # whatever the user's code throws
        raise UserError(f"{name}({_said(arguments)}): {_cause(error)}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"{name} makes no torch.nn.Module: {type(made).__name__}")
    return made


def keyword(text):
    """'depth=18' as ('depth', 18); what is no Python literal is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UserError(f"--with {text}: expected NAME=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def load_weights(module, path):
    """A state dict, or a checkpoint that holds one under one of the usual keys."""
    try:
        state = _read(path)
    except UserError:
        raise
    except Exception as error:  # torch.load throws what pickle, zipfile and the system throw
        raise UserError(f"--weights {path}: {_cause(error)}") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise UserError(f"--weights {path}: holds no state dict")
    for prefix in ("module.", "_orig_mod."):  # of DistributedDataParallel and torch.compile
        if state and all(name.startswith(prefix) for name in state):
            state = {name[len(prefix) :]: value for name, value in state.items()}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise UserError(f"--weights {path}: {' '.join(lines) or error}") from error


def _read(path):
    if path.endswith(".safetensors"):
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise UserError(f"--weights {path}: {sys.executable} has no module safetensors") from None
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _imported(file):
    is_path = file.endswith(".py")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)) if is_path else os.getcwd())
    try:
        if not is_path:
            return importlib.import_module(file)
        if not os.path.isfile(file):
            raise UserError(f"{file}: no such file")
        name = os.path.splitext(os.path.basename(file))[0]
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{file} cannot be imported: {_cause(error)}") from error


def _near(name, owner):
    import difflib

    near = difflib.get_close_matches(name, dir(owner), 1)
    return f", did you mean '{near[0]}'?" if near else ""


def _said(arguments):
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def _cause(error):
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
