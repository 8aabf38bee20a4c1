"""How codecs cut a tensor into buckets: docs/wire-format.md."""

UNIT = 64  # values: codecs without buckets are striped in units of this many
QSGD = {2: 128, 4: 512, 8: 512, 16: 8192}  # the study's bucket for each number of bits


def length(bucket, kind, shape, elements):
    """Values of a whole bucket of a tensor; `bucket` as in a configuration: a number, tensor or column."""
    if bucket == "column":
        if kind == "conv":
            return max(1, shape[3])  # (O, H, I, W): a column is a row of W
        bucket = shape[0] if len(shape) == 2 else "tensor"  # (in, out): a column is the outputs of one input
    return max(1, elements if bucket == "tensor" else bucket)
