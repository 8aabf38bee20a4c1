"""lpsgd's codecs for PyTorch: gradients of DistributedDataParallel, exchanged in few bits a value.

    model = DistributedDataParallel(net)
    exchange = lpsgd.compress_gradients(model, codec="{kind: qsgd, bits: 4, bucket: 512}")

See docs/pytorch-hook.md.
"""

from .ddp import GradientExchange, compress_gradients
from .library import LibraryError

__all__ = ["GradientExchange", "LibraryError", "compress_gradients"]
