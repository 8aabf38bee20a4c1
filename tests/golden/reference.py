"""A slow reference of the codecs, written from the numerics' text alone: plain Python with numpy float32 scalars,
one operation at a time, and a Philox of its own. Nothing here is shared with the C++."""
import math
import struct

import numpy as np

f32 = np.float32
NAN = np.frombuffer(struct.pack("<I", 0x7FC00000), dtype="<f4")[0]
np.seterr(all="ignore")  # overflow to infinity and NaN are part of the definition


# ---- Philox4x32-10

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class Dither:
    """(2d+1)/131072 of each element, d its 16-bit half."""

    def __init__(self, seed, tensor, step, rank, round_):
        self.key = (seed, 1)
        self.rest = (tensor, step, 2 * rank + round_ - 1)
        self.blocks = {}

    def __call__(self, element):
        block = element // 8
        if block not in self.blocks:
            self.blocks[block] = philox((block & 0xFFFFFFFF,) + self.rest, self.key)
        half = element % 8
        d = (self.blocks[block][half // 2] >> (16 * (half % 2))) & 0xFFFF
        return f32((2 * d + 1) / 131072)


# ---- Arithmetic in float32

def fma(a, b, c):
    """a*b + c rounded once: the product is exact in double; the sum is made odd before it is cut to float32."""
    p, c = float(a) * float(b), float(c)
    s = p + c
    if not math.isfinite(s):
        return f32(s)
    bb = s - p  # the error of the sum, exactly
    error = (p - (s - bb)) + (c - bb)
    if error != 0.0:
        bits = struct.unpack("<q", struct.pack("<d", s))[0]
        if bits & 1 == 0:  # round to odd, so that the next rounding sees that something is left
            away = (error > 0) == (s > 0)
            bits += 1 if away else -1
            s = struct.unpack("<d", struct.pack("<q", bits))[0]
    return f32(s)


def fixed_sum(values, square=False):
    """Blocks of 4096; in each 32 partial sums from +0, folded by halves; the block sums by the same rule."""
    if len(values) == 0:
        return f32(0)
    sums = []
    for start in range(0, len(values), 4096):
        partial = [f32(0)] * 32
        for i, x in enumerate(values[start:start + 4096]):
            partial[i % 32] = fma(x, x, partial[i % 32]) if square else f32(partial[i % 32] + x)
        for h in (16, 8, 4, 2, 1):
            for j in range(h):
                partial[j] = f32(partial[j] + partial[j + h])
        sums.append(partial[0])
    return sums[0] if len(sums) == 1 else fixed_sum(sums)


def finite(x):
    return bool(np.isfinite(x))


def with_residual(values, residual):
    if residual is None:
        return [f32(x) for x in values]
    return [f32(f32(g) + f32(r)) for g, r in zip(values, residual)]


def difference(v, q):
    out = np.array([f32(a - b) for a, b in zip(v, q)], dtype=np.float32)
    out[np.isnan(out)] = NAN
    return out


def words(codes, bits):
    """Codes from the lowest bit of 32-bit words up."""
    stream = 0
    for i, code in enumerate(codes):
        stream |= int(code) << (i * bits)
    return stream.to_bytes(4 * ((len(codes) * bits + 31) // 32), "little")


def unpack(data, count, bits):
    stream = int.from_bytes(data, "little")
    return [(stream >> (i * bits)) & ((1 << bits) - 1) for i in range(count)]


def scales(*values):
    return b"".join(struct.pack("<I", 0x7FC00000) if np.isnan(x) else struct.pack("<f", x) for x in values)


# ---- One bucket of each codec: (bytes, values they decode to)

def onebit_bucket(v, **_):
    positive = [bool(x >= 0) for x in v]
    sum_pos = fixed_sum([x if p else f32(0) for x, p in zip(v, positive)])
    sum_neg = fixed_sum([f32(0) if p else x for x, p in zip(v, positive)])
    if not (all(map(finite, v)) and finite(sum_pos) and finite(sum_neg)):
        return scales(NAN, NAN) + words([0] * len(v), 1), [NAN] * len(v)
    n_pos = sum(positive)
    n_neg = len(v) - n_pos
    avg_pos = f32(sum_pos / f32(n_pos)) if n_pos else f32(0)
    avg_neg = f32(sum_neg / f32(n_neg)) if n_neg else f32(0)
    return scales(avg_pos, avg_neg) + words(positive, 1), [avg_pos if p else avg_neg for p in positive]


def non_finite(scale_count, v, bits):
    return scales(*[NAN] * scale_count) + words([0] * len(v), bits), [NAN] * len(v)


def norm_of(v, norm):
    scale = max((f32(abs(x)) for x in v), default=f32(0))
    if norm == "l2":
        squares = fixed_sum(v, square=True)
        if finite(squares) and f32(np.sqrt(squares)) > scale:
            scale = f32(np.sqrt(squares))
    return scale


def magnitude_levels(levels, bits, table):
    """The levels from 0 to 1 that a magnitude is rounded to, exactly."""
    s = (1 << (bits - 1)) - 1
    if levels == "exponential":
        return [f32(0)] + [f32(2.0 ** -(s - j)) for j in range(1, s + 1)]
    return [f32(b / 256) for b in table[:s]] + [f32(1)]


def qsgd_bucket(v, first, dither, bits, norm="max", levels="sign_magnitude", table=b"", **_):
    if not all(map(finite, v)):
        return non_finite(1, v, bits)
    s = (1 << (bits - 1)) - 1
    scale = norm_of(v, norm)
    codes, values = [], []
    if levels == "interval":
        top = f32((1 << bits) - 1)
        for i, x in enumerate(v):
            code = 0
            if scale > 0:
                a = f32(f32(f32(f32(x / scale) * top) + top) / f32(2))
                code = int(np.floor(a))
                if dither(first + i) < f32(a - f32(code)):
                    code += 1
            codes.append(code)
            values.append(f32(scale * f32(f32(2 * code - int(top)) / top)) if scale > 0 else f32(0))
        return scales(scale) + words(codes, bits), values
    grid = None if levels == "sign_magnitude" else magnitude_levels(levels, bits, table)
    for i, x in enumerate(v):
        level = 0
        if scale > 0 and grid is None:
            a = f32(f32(abs(x) / scale) * f32(s))
            level = int(np.floor(a))
            if dither(first + i) < f32(a - f32(level)):
                level += 1
        elif scale > 0:
            y = f32(abs(x) / scale)
            level = max(j for j in range(s + 1) if grid[j] <= y)
            if level < s and dither(first + i) < f32(f32(y - grid[level]) / f32(grid[level + 1] - grid[level])):
                level += 1
        negative = level > 0 and bool(np.signbit(x))
        codes.append(level | (negative << (bits - 1)))
        q = f32(scale * (f32(f32(level) / f32(s)) if grid is None else grid[level]))
        values.append(f32(-q) if negative else q)
    return scales(scale) + words(codes, bits), values


def optimal_table(v, bucket, bits, norm):
    """One byte a level: those that minimise the sum over cells of count * (x - lo) * (hi - x), the plain way."""
    counts = [0] * 256
    for start in range(0, len(v), bucket):
        part = v[start:start + bucket]
        if not all(map(finite, part)):
            continue
        scale = norm_of(part, norm)
        if scale > 0:
            for x in part:
                counts[min(255, int(f32(abs(x) / scale) * f32(256)))] += 1
    s = (1 << (bits - 1)) - 1
    # cost[a, b]: of a level at a/256 and the next at b/256, times 512^2; every one tried for every b.
    x = 2 * np.arange(256, dtype=np.int64) + 1
    lo, hi = 2 * np.arange(257, dtype=np.int64)[:, None, None], 2 * np.arange(257, dtype=np.int64)[None, :, None]
    present = np.nonzero(counts)[0]
    x, n = x[present], np.array(counts, dtype=np.int64)[present]
    cost = np.where((lo < x) & (x < hi), n * (x - lo) * (hi - x), 0).sum(axis=2)
    never = np.int64(2**60)
    cost[np.tril_indices(257)] = never
    best = np.full(257, never)
    best[0] = 0
    steps = []
    for _ in range(s):
        sums = np.minimum(best[:, None] + cost, never)
        steps.append(np.argmin(sums, axis=0))  # of equal sums the smaller level
        best = np.min(sums, axis=0)
    levels = [256]
    for step in reversed(steps):
        levels.append(int(step[levels[-1]]))
    return bytes(min(level, 255) for level in reversed(levels))


def sign_bucket(v, majority=False, **_):
    total = fixed_sum([f32(abs(x)) for x in v])
    if majority:
        if not all(map(finite, v)):
            return words([0] * len(v), 1), [f32(-1)] * len(v)
        scale, head = f32(1), b""
    else:
        if not (all(map(finite, v)) and finite(total)):
            return non_finite(1, v, 1)
        scale = f32(total / f32(len(v)))
        head = scales(scale)
    plus = [bool(x >= 0) for x in v]
    return head + words(plus, 1), [scale if p else f32(-scale) for p in plus]


def topk_bucket(v, density=0.01, **_):
    kept = max(1, math.floor(density * len(v) + 0.5))

    def order(i):
        magnitude = math.inf if np.isnan(v[i]) else float(abs(v[i]))
        return (not np.isnan(v[i]), -magnitude, i)  # NaNs first, then by magnitude, then by place

    places = sorted(sorted(range(len(v)), key=order)[:kept])
    q = [f32(0)] * len(v)
    for i in places:
        q[i] = NAN if np.isnan(v[i]) else f32(v[i] + f32(0))
    return struct.pack(f"<{kept}I", *places) + scales(*[v[i] for i in places]), q


def dynamic8_magnitudes(type_):
    if type_ == "dynamic_tree":
        out = [0.0]
        for i in range(6):
            for low, high in ((0.1, 0.45), (0.45, 1.0)):
                width = (high - low) / 2**i
                out += [10.0 ** (i - 5) * (low + width * (j + 0.5)) for j in range(2**i)]
        out.append(1.0)
    elif type_ == "static_tree":
        out = [10.0 ** (c // 16 - 7) * (0.1 + 0.9 * (c % 16 + 0.5) / 16) for c in range(128)]
    elif type_ == "linear":
        out = [c / 127 for c in range(128)]
    else:
        out = [(c if c < 16 else (16 + c % 16) * 2 ** (c // 16 - 1)) / 1984 for c in range(128)]
    out[0], out[127] = 0.0, 1.0
    return [f32(x) for x in out]


def dynamic8_bucket(v, type="dynamic_tree", **_):
    if not all(map(finite, v)):
        return non_finite(1, v, 8)
    grid = dynamic8_magnitudes(type)
    scale = max((f32(abs(x)) for x in v), default=f32(0))
    codes, values = [], []
    for x in v:
        y = float(f32(abs(x) / scale)) if scale > 0 else 0.0
        code = min(range(128), key=lambda c: (abs(float(grid[c]) - y), c))  # exact in double; ties to the smaller
        negative = code > 0 and bool(np.signbit(x))
        codes.append(code | (negative << 7))
        q = f32(scale * grid[code])
        values.append(f32(-q) if negative else q)
    return scales(scale) + words(codes, 8), values


# Of each MX element type: exponent bits, mantissa bits, and its largest value (OCP MX v1.0, section 5.3).
MX_ELEMENTS = {"e2m1": (2, 1, 6), "e4m3": (4, 3, 448), "e5m2": (5, 2, 57344)}


def mx_magnitudes(element):
    """The values of the codes without a sign, up to the largest, exactly."""
    exponent_bits, mantissa_bits, largest = MX_ELEMENTS[element]
    bias = 2 ** (exponent_bits - 1) - 1
    out = []
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        exponent, fraction = code >> mantissa_bits, (code % 2**mantissa_bits) / 2**mantissa_bits
        out.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    return out[: out.index(largest) + 1]


def mx_bucket(v, first, dither, element="e2m1", rounding="stochastic", **_):
    grid = mx_magnitudes(element)
    bits = 1 + sum(MX_ELEMENTS[element][:2])
    exponents, codes, values = [], [], []
    for start in range(0, len(v), 32):
        block = v[start:start + 32]
        top = max(float(abs(x)) if finite(x) else math.inf for x in block)
        if top > 2.0**126:
            exponents.append(255)
            codes += [0] * len(block)
            values += [NAN] * len(block)
            continue
        e = next(e for e in range(-127, 127) if top <= grid[-1] * 2.0**e)
        exponents.append(e + 127)
        for i, x in enumerate(block):
            y = float(abs(x)) / 2.0**e
            code = max(c for c, g in enumerate(grid) if g <= y)
            if grid[code] < y:
                fraction = (y - grid[code]) / (grid[code + 1] - grid[code])
                if rounding == "stochastic":
                    code += bool(dither(first + start + i) < fraction)
                else:
                    code += fraction > 0.5 or (fraction == 0.5 and code % 2 == 1)
            negative = code > 0 and bool(np.signbit(x))
            codes.append(code | negative << (bits - 1))
            q = f32(grid[code] * 2.0**e)
            values.append(f32(-q) if negative else q)
    head = bytes(exponents)
    return head + bytes(-len(head) % 4) + words(codes, bits), values


BUCKETS = {"onebit": onebit_bucket, "qsgd": qsgd_bucket, "sign": sign_bucket, "topk": topk_bucket,
           "dynamic8": dynamic8_bucket, "mx": mx_bucket}


# ---- Whole tensors

def encode(codec, values, residual=None, first=0, bucket=None, **context):
    """(bytes, new residual, values they decode to)"""
    v = with_residual(values, residual)
    kind = codec["kind"]
    if kind in ("none", "fp16", "bf16"):
        data, q = encode_floats(kind, v)
    else:
        dither = Dither(context["seed"], context["tensor"], context["step"], context["rank"], context["round_"])
        one = BUCKETS[kind]
        optimal = codec.get("levels") == "optimal" and len(v) > 0
        table = optimal_table(v, bucket, codec["bits"], codec.get("norm", "max")) if optimal else b""
        data, q = table, []
        for start in range(0, len(v), bucket):
            record, part = one(v[start:start + bucket], first=first + start, dither=dither, table=table, **codec)
            data += record
            q += part
    return data, difference(v, q), np.array(q, dtype=np.float32)


def encode_floats(kind, v):
    array = np.array(v, dtype=np.float32)
    if kind == "none":
        codes = array.view(np.uint32).copy()
        codes[np.isnan(array)] = 0x7FC00000
        return codes.astype("<u4").tobytes(), list(codes.view(np.float32))
    if kind == "fp16":
        codes = array.astype(np.float16).view(np.uint16).copy()
        codes[np.isnan(array)] = 0x7E00
        q = codes.view(np.float16).astype(np.float32)
    else:
        bits = array.view(np.uint32).astype(np.uint64)
        half, rest = bits >> 16, bits & 0xFFFF
        up = (rest > 0x8000) | ((rest == 0x8000) & (half % 2 == 1))
        codes = (half + up).astype(np.uint16)
        codes[np.isnan(array)] = 0x7FC0
        q = (codes.astype(np.uint32) << 16).view(np.float32).copy()
    q[np.isnan(q)] = NAN
    return codes.astype("<u2").tobytes(), list(q)


def reduce(codec, contributions, residual, **context):
    """The mean over ranks of decoded contributions, added in rank order, encoded."""
    total = contributions[0].astype(np.float32)
    for q in contributions[1:]:
        total = (total + q).astype(np.float32)
    mean = (total * (f32(1) / f32(len(contributions)))).astype(np.float32)
    return encode(codec, mean, residual, **context)
