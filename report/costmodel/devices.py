"""Where ranks compute, and what their exchange needs of the host for that."""

import functools
from dataclasses import replace

import program
from configuration import section

from costmodel.errors import CostModelError

CPU, GPU = "cpu", "cuda"


@functools.lru_cache(maxsize=None)
def has_gpu():
    """Whether the program finds a GPU on this machine."""
    return bool(program.ask("version", "--json")["is_cuda_available"])


def wanted(config):
    """The device that the configuration names, or None."""
    device, is_nccl = section(config, "train").get("device", "auto"), exchanges_over_nccl(config)
    if is_nccl and device == CPU:
        raise CostModelError("exchange.transport: nccl needs GPUs, and train.device is cpu")
    return GPU if is_nccl else None if device == "auto" else device


def configured(config):
    """The device that a run of this configuration would take on this machine."""
    return wanted(config) or (GPU if has_gpu() else CPU)


def of_environment(environment, config, where):
    """The device that a run's ranks took, by its environment.json; of one that does not tell, by its configuration."""
    listed = environment.get("devices")
    if not isinstance(listed, list) or not listed:
        return wanted(config) or CPU
    found = {GPU if str(device).startswith(GPU) else CPU for device in listed}
    if len(found) > 1:
        raise CostModelError(f"{where}: a run on CPUs and GPUs at once")
    return found.pop()


def exchanges_over_nccl(config):
    return section(config, "exchange").get("transport", "mpi") == "nccl"


def takes_device_pointers(config):
    return section(config, "exchange").get("device_pointers") in (True, "true")


def is_staged(config, device):
    """Whether messages travel through the host's memory, to and from a GPU."""
    return device == GPU and not exchanges_over_nccl(config) and not takes_device_pointers(config)


def travels_alike(one, other, device):
    """Whether what two runs' exchanges need beside the link is comparable. On CPUs it always is."""
    return device == CPU or all(of(one) == of(other) for of in (exchanges_over_nccl, takes_device_pointers))


def overlaps(config, device, ranks):
    """Whether the exchange begins before backward ends. A single rank's GPU launches backward as one graph."""
    return bool(section(config, "exchange").get("overlap", True)) and not (device == GPU and ranks == 1)


def host_of(config, device, base):
    """`base`, a pipeline.Host, for this configuration's transport."""
    if exchanges_over_nccl(config):
        return replace(base, copy=0.0, ordered=True)
    return replace(base, copy=0.0) if device == GPU and takes_device_pointers(config) else base
