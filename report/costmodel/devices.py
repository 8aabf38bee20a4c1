"""Where ranks compute, and what their exchange needs of the host for that."""

import functools
from dataclasses import replace

import program
from configuration import section

CPU, GPU = "cpu", "cuda"


@functools.lru_cache(maxsize=None)
def has_gpu():
    """Whether the program finds a GPU on this machine."""
    return bool(program.ask("version", "--json")["is_cuda_available"])


def configured(config):
    """The device that a run of this configuration would take on this machine."""
    device = section(config, "train").get("device", "auto")
    return device if device != "auto" else GPU if has_gpu() else CPU


def of_environment(environment, config):
    """The device that a run took, by its environment.json; of one that does not tell, by its configuration."""
    devices = environment.get("devices")
    if isinstance(devices, list) and devices:
        return GPU if str(devices[0]).startswith(GPU) else CPU
    return GPU if section(config, "train").get("device") == GPU else CPU


def exchanges_over_nccl(config):
    return section(config, "exchange").get("transport", "mpi") == "nccl"


def is_staged(config, device):
    """Whether messages travel through the host's memory, to and from a GPU."""
    takes_pointers = section(config, "exchange").get("device_pointers") in (True, "true")
    return device == GPU and not exchanges_over_nccl(config) and not takes_pointers


def host_for(config, base):
    """`base`, a pipeline.Host, for this configuration's transport."""
    return replace(base, copy=0.0, has_groups=True) if exchanges_over_nccl(config) else base
