"""Moves messages between the ranks of a torch.distributed process group, on the CPU or a CUDA device."""

import contextlib
import ctypes

import torch
import torch.distributed as dist


class _DeviceBytes:
    """Memory of a CUDA device as torch.as_tensor takes it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 2,
        }


class Transport:
    """`group` is the model's. Messages travel in a group of their own where that is possible, so that they cannot meet
    messages of others."""

    def __init__(self, group, device):
        backend = dist.get_backend(group)
        wanted = "nccl" if device.type == "cuda" else "gloo"
        if wanted not in backend and backend != "undefined":  # "cpu:gloo,cuda:nccl" has both
            raise ValueError(
                f"the process group's backend is {backend}; gradients on {device.type} need {wanted}"
            )
        self.device = device
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self._peers = list(range(self.ranks))
        if self.ranks == dist.get_world_size():
            self._group = dist.new_group(backend=wanted)
        else:
            self._group = group
            self._peers = [dist.get_global_rank(group, rank) for rank in self._peers]
        self.cuda = None
        if device.type == "cuda":
            self.gradient_stream = torch.cuda.Stream(device, priority=-1)
            self.message_stream = torch.cuda.Stream(device, priority=-1)
            self.cuda = (
                device.index,
                self.gradient_stream.cuda_stream,
                self.message_stream.cuda_stream,
            )

    def require_equal(self, mine):
        """ValueError on all ranks, which names what differs, unless every rank has the same values."""
        everyone = [None] * self.ranks
        with torch.cuda.device(self.device) if self.cuda else contextlib.nullcontext():
            dist.all_gather_object(everyone, mine, group=self._group)
        for rank, theirs in enumerate(everyone):
            different = [key for key in everyone[0] if theirs.get(key) != everyone[0][key]]
            if different:
                raise ValueError(f"rank {rank} has other {' and '.join(different)} than rank 0")

    def view(self, address, size):
        """A message's bytes as a tensor."""
        if not size:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        if self.cuda:
            return torch.as_tensor(_DeviceBytes(address, size), device=self.device)
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def post(self, sends, receives, tag):
        """Begins to move messages: dictionaries from rank to tensor. Returns what wait() takes."""
        operations = [(dist.irecv, tensor, rank) for rank, tensor in receives.items() if tensor.numel()]
        operations += [(dist.isend, tensor, rank) for rank, tensor in sends.items() if tensor.numel()]
        if not operations:
            return []
        if self.cuda:
            return dist.batch_isend_irecv(
                [
                    dist.P2POp(operation, tensor, self._peers[rank], self._group)
                    for operation, tensor, rank in operations
                ]
            )
        return [
            operation(tensor, self._peers[rank], group=self._group, tag=tag)
            for operation, tensor, rank in operations
        ]

    @staticmethod
    def wait(works):
        """Until the messages have moved; on a CUDA device the current stream waits, not the host."""
        for work in works:
            work.wait()
