"""liblpsgd.so: the C interface of python/c_api.h, without PyTorch."""

import ctypes
import functools
import os
import pathlib

API_VERSION = 2
OUTGOING, INCOMING, MEAN = range(3)

_SIZE = ctypes.c_size_t
_FLOATS = ctypes.POINTER(ctypes.c_float)


class LibraryError(RuntimeError):
    """liblpsgd.so is missing or of another version, or a call of it has failed."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", _SIZE),
    ]


class _Options(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("ranks", ctypes.c_int32),
        ("seed", ctypes.c_uint32),
        ("cuda_device", ctypes.c_int32),
        ("gradient_stream", ctypes.c_void_p),
        ("message_stream", ctypes.c_void_p),
    ]


_CODER = ctypes.c_void_p
_ARGUMENTS = {
    "lpsgd_coder_new": [
        ctypes.c_char_p,
        ctypes.POINTER(_Tensor),
        _SIZE,
        ctypes.POINTER(_Options),
        ctypes.POINTER(_CODER),
    ],
    "lpsgd_add_bucket": [
        _CODER,
        ctypes.POINTER(_SIZE),
        ctypes.POINTER(ctypes.c_void_p),
        _SIZE,
        ctypes.POINTER(_SIZE),
    ],
    "lpsgd_move_bucket": [_CODER, _SIZE, ctypes.POINTER(ctypes.c_void_p), _SIZE],
    "lpsgd_drop_bucket": [_CODER, _SIZE],
    "lpsgd_message": [
        _CODER,
        _SIZE,
        ctypes.c_int,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(_SIZE),
    ],
    "lpsgd_begin": [_CODER, ctypes.c_uint32],
    "lpsgd_encode": [_CODER, _SIZE],
    "lpsgd_reduce": [_CODER, _SIZE],
    "lpsgd_decode": [_CODER, _SIZE],
    "lpsgd_end": [_CODER],
    "lpsgd_take_seconds": [_CODER, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)],
    "lpsgd_get_residual": [_CODER, _SIZE, ctypes.c_int, _FLOATS, ctypes.POINTER(_SIZE)],
    "lpsgd_set_residual": [_CODER, _SIZE, ctypes.c_int, _FLOATS, _SIZE],
    "lpsgd_redistribute_residuals": [
        _CODER,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(_SIZE),
    ],
}


def _paths():
    """Where the library may be: where LPSGD_LIBRARY says, beside this file, or in a build folder."""
    named = os.environ.get("LPSGD_LIBRARY")
    if named:
        return [pathlib.Path(named)]
    here = pathlib.Path(__file__).resolve().parent
    return [here / "liblpsgd.so", here.parents[1] / "build" / "release" / "liblpsgd.so"]


@functools.lru_cache(maxsize=None)
def load():
    paths = _paths()
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        raise LibraryError(
            f"{' and '.join(str(path) for path in paths)}: no such file; scripts/build makes it, "
            "and the environment variable LPSGD_LIBRARY may name another one"
        )
    try:
        library = ctypes.CDLL(str(found))
        version = library.lpsgd_api_version()
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{found} cannot be loaded: {error}") from None
    if version != API_VERSION:
        raise LibraryError(
            f"{found} has version {version} of the interface, this package version {API_VERSION}; "
            "take both from one revision"
        )
    for name, arguments in _ARGUMENTS.items():
        getattr(library, name).argtypes = arguments
    library.lpsgd_coder_free.argtypes = [_CODER]
    library.lpsgd_coder_free.restype = None
    for name, arguments in {
        "lpsgd_last_error": [],
        "lpsgd_codec_of": [_CODER, _SIZE],
        "lpsgd_warnings": [_CODER],
    }.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = ctypes.c_char_p
    return library


class Coder:
    """comm/message_coder.h of one rank. `tensors` are (name, kind, shape). Numbers of tensors are their places in
    that list. `cuda`: nothing on the CPU, or the GPU's number and two streams' handles, of gradients and of messages.
    """

    def __init__(self, policy, tensors, *, rank, ranks, seed, cuda=None):
        self._library = load()
        self._coder = _CODER()
        shapes = [(ctypes.c_int64 * len(shape))(*shape) for _, _, shape in tensors]
        given = (_Tensor * len(tensors))(
            *(
                _Tensor(name.encode(), kind.encode(), shape, len(shape))
                for (name, kind, _), shape in zip(tensors, shapes)
            )
        )
        options = _Options(rank, ranks, seed, *(cuda or (-1, None, None)))
        self._call(
            "coder_new",
            policy.encode(),
            given,
            len(tensors),
            ctypes.byref(options),
            ctypes.byref(self._coder),
        )
        self.rank, self.ranks = rank, ranks
        self.codecs = [self._library.lpsgd_codec_of(self._coder, t).decode() for t in range(len(tensors))]
        self.warnings = self._library.lpsgd_warnings(self._coder).decode().splitlines()

    def close(self):
        if self._coder:
            self._library.lpsgd_coder_free(self._coder)
            self._coder = _CODER()

    def __del__(self):
        if getattr(self, "_coder", None):
            self.close()

    def _call(self, name, *arguments):
        if getattr(self._library, "lpsgd_" + name)(*arguments) != 0:
            raise LibraryError(self._library.lpsgd_last_error().decode())

    def add_bucket(self, tensors, addresses):
        """The number of a bucket of these tensors, whose gradients lie at these addresses."""
        number = _SIZE()
        count = len(tensors)
        self._call(
            "add_bucket",
            self._coder,
            (_SIZE * count)(*tensors),
            (ctypes.c_void_p * count)(*addresses),
            count,
            ctypes.byref(number),
        )
        return number.value

    def move_bucket(self, bucket, addresses):
        """Its gradients lie at other addresses from now on."""
        count = len(addresses)
        self._call("move_bucket", self._coder, bucket, (ctypes.c_void_p * count)(*addresses), count)

    def drop_bucket(self, bucket):
        self._call("drop_bucket", self._coder, bucket)

    def message(self, bucket, which, rank):
        """Address and size of a message."""
        address, size = ctypes.c_void_p(), _SIZE()
        self._call(
            "message", self._coder, bucket, which, rank, ctypes.byref(address), ctypes.byref(size)
        )
        return address.value or 0, size.value

    def begin(self, step):
        self._call("begin", self._coder, step)

    def encode(self, bucket):
        self._call("encode", self._coder, bucket)

    def reduce(self, bucket):
        self._call("reduce", self._coder, bucket)

    def decode(self, bucket):
        self._call("decode", self._coder, bucket)

    def end(self):
        self._call("end", self._coder)

    def take_seconds(self):
        encode, decode = ctypes.c_double(), ctypes.c_double()
        self._call("take_seconds", self._coder, ctypes.byref(encode), ctypes.byref(decode))
        return encode.value, decode.value

    def residual_size(self, tensor, round_):
        size = _SIZE()
        self._call("get_residual", self._coder, tensor, round_, None, ctypes.byref(size))
        return size.value

    def get_residual(self, tensor, round_, address, size):
        """Copies a residual to `size` floats of host memory."""
        self._call(
            "get_residual",
            self._coder,
            tensor,
            round_,
            ctypes.cast(address, _FLOATS),
            ctypes.byref(_SIZE(size)),
        )

    def set_residual(self, tensor, round_, address, size):
        self._call("set_residual", self._coder, tensor, round_, ctypes.cast(address, _FLOATS), size)

    def redistribute_residuals(self, old_ranks, values):
        """Sets all residuals from those of other ranks. `values`: (address, size) by rank, tensor and round."""
        count = len(values)
        self._call(
            "redistribute_residuals",
            self._coder,
            old_ranks,
            (ctypes.c_void_p * count)(*(address for address, _ in values)),
            (_SIZE * count)(*(size for _, size in values)),
        )
