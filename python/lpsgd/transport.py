"""Moves messages between the ranks of a torch.distributed process group, on the CPU or a CUDA device."""

import contextlib
import ctypes
import inspect

import torch
import torch.distributed as dist

from . import library

_TAGS = 1 << 16  # of one exchange
_sharing = {}  # how many exchanges use a group that they share, by the group


class _DeviceBytes:
    """Memory of a CUDA device as torch.as_tensor takes it, with the object that owns it."""

    def __init__(self, address, size, owner):
        self.owner = owner
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 2,
        }


class Transport:
    """`group` is the model's, and `timeout` a datetime.timedelta or None, for PyTorch's default. Messages travel in a group of
    their own, so that they cannot be taken for others. PyTorch before 2.1 cannot make one for a part of all processes; there
    the exchanges of the model's group have different tags. All ranks of the group make a Transport at the same time."""

    def __init__(self, group, timeout):
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self._peers = list(range(self.ranks))
        self._own, self._tag = True, 0
        self.device, self.cuda = torch.device("cpu"), None
        backend = dist.get_backend(group)
        options = {"backend": None if backend == "undefined" else backend, "timeout": timeout}
        options = {key: value for key, value in options.items() if value is not None}
        if self.ranks == dist.get_world_size():
            self.group = dist.new_group(**options)
            return
        self._peers = [dist.get_global_rank(group, rank) for rank in self._peers]
        if "use_local_synchronization" in inspect.signature(dist.new_group).parameters:
            self.group = dist.new_group(self._peers, use_local_synchronization=True, **options)
        else:
            if timeout is not None:
                raise ValueError(
                    f"timeout: PyTorch {torch.__version__} has none for a part of all processes; leave it out"
                )
            self._own, self.group = False, group
            self._tag = _TAGS * _sharing.get(group, 0)
            _sharing[group] = _sharing.get(group, 0) + 1

    def use(self, device):
        """Moves messages in the memory of this device. Raises ValueError if the group cannot."""
        backend = dist.get_backend(self.group)
        wanted = {"cpu": "gloo", "cuda": "nccl"}.get(device.type)
        if wanted is None:
            raise ValueError(f"the model is on {device}; expected the CPU or a CUDA device")
        if wanted not in backend and backend != "undefined":  # "cpu:gloo,cuda:nccl" has both
            raise ValueError(
                f"the process group's backend is {backend}; gradients on {device.type} need {wanted}"
            )
        self.device = device
        if device.type == "cuda":
            self.gradient_stream = torch.cuda.Stream(device, priority=-1)
            self.message_stream = torch.cuda.Stream(device, priority=-1)
            self.cuda = (
                device.index,
                self.gradient_stream.cuda_stream,
                self.message_stream.cuda_stream,
            )

    def on_device(self):
        """Makes the device the current one for a with statement."""
        return torch.cuda.device(self.device) if self.cuda else contextlib.nullcontext()

    def with_room(self, make):
        """What `make` returns. Its memory comes from CUDA itself; where that has none left, PyTorch first gives back the blocks
        that it keeps for later (but none of which a part is in use)."""
        try:
            return make()
        except library.LibraryError as error:
            if not self.cuda or "cudaErrorMemoryAllocation" not in str(error):
                raise
        torch.cuda.empty_cache()
        return make()

    def gather(self, mine):
        """Every rank's object, by rank."""
        everyone = [None] * self.ranks
        with self.on_device():
            dist.all_gather_object(everyone, mine, group=self.group)
        return everyone

    def close(self):
        if self._own:
            dist.destroy_process_group(self.group)
        self._own = False

    def view(self, address, size, owner):
        """A message's bytes as a tensor. They are the owner's, which lives as long as the tensor."""
        if not size:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        if self.cuda:
            return torch.as_tensor(_DeviceBytes(address, size, owner), device=self.device)
        memory = (ctypes.c_uint8 * size).from_address(address)
        memory.owner = owner
        return torch.frombuffer(memory, dtype=torch.uint8)

    def post(self, sends, receives, tag):
        """Begins to move messages: dictionaries from rank to tensor. Returns what wait() takes."""
        operations = [(dist.irecv, tensor, rank) for rank, tensor in receives.items() if tensor.numel()]
        operations += [(dist.isend, tensor, rank) for rank, tensor in sends.items() if tensor.numel()]
        if not operations:
            return []
        if self.cuda:
            return dist.batch_isend_irecv(
                [
                    dist.P2POp(operation, tensor, self._peers[rank], self.group)
                    for operation, tensor, rank in operations
                ]
            )
        return [
            operation(tensor, self._peers[rank], group=self.group, tag=self._tag + tag)
            for operation, tensor, rank in operations
        ]

    @staticmethod
    def wait(works):
        """Until the messages have moved; on a CUDA device the current stream waits, not the host."""
        for work in works:
            work.wait()
