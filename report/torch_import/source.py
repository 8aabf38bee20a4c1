"""Makes the module that the command line names, and loads its weights."""

import ast
import difflib
import importlib
import importlib.util
import os
import sys

import torch
from errors import UserError
from torch import nn

STATE_KEYS = ("state_dict", "model_state_dict", "model")  # where checkpoints have the state dict
PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


def make(name, arguments, seed):
    """The module of 'FILE.py:NAME' or 'package.module:NAME'; NAME is a class, a function or a module."""
    file, _, attribute = name.rpartition(":")
    if not file or not attribute:
        raise UserError(f"'{name}' is neither FILE.py:NAME nor package.module:NAME")
    torch.manual_seed(seed)
    found = _imported(file)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), 1)
            raise UserError(f"{file} has no '{part}'" + (f", did you mean '{near[0]}'?" if near else ""))
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        if arguments:
            raise UserError(f"{name} is a module already, so --with gives arguments to nothing")
        return found
    if not callable(found):
        raise UserError(f"{name} is no module, and nothing that makes one: {type(found).__name__}")
    try:
        made = found(**arguments)
    except (Exception, SystemExit) as error:  # whatever the user's code throws
        said = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UserError(f"{name}({said}): {cause(error)}") from error
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
        raise UserError(f"--weights {path}: {cause(error)}") from error
    for key in STATE_KEYS:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items()
    ):
        raise UserError(f"--weights {path}: holds no state dict")
    names = module.state_dict().keys()  # a network may have a child of a wrapper's name itself
    while names.isdisjoint(state) and (
        prefix := next((p for p in PREFIXES if state and all(n.startswith(p) for n in state)), None)
    ):
        state = {name[len(prefix) :]: value for name, value in state.items()}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise UserError(f"--weights {path}: {' '.join(lines) or error}") from error


def cause(error):
    """The kind of an exception and the first sentence of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].split('. ')[0]}" if lines else type(error).__name__


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
    _hide_own_modules()
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
    except (Exception, SystemExit) as error:
        raise UserError(f"{file} cannot be imported: {cause(error)}") from error


def _hide_own_modules():
    """So that the user's `import errors` finds the user's. All of ours are imported by now."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != own]
    for name, module in list(sys.modules.items()):
        if name != "__main__" and (getattr(module, "__file__", None) or "").startswith(own + os.sep):
            del sys.modules[name]
