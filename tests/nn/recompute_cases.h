// A network with every place that a batch normalisation's output may have: before a pooling that does not
// read it again, before a convolution of single pixels and one of 3 x 3, before another norm, read twice,
// added to, as columns of a concatenation whose other columns are norms', too, or not.
#pragma once

#include <string>

namespace lpsgd {

inline const std::string recompute_network =
    "input: [10, 10, 4]\nclasses: 5\nlayers:\n"
    "  - {conv: c0, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n0}\n  - {relu: r0}\n"
    "  - {max_pool: p0, kernel: 2}\n"
    // A bottleneck, with rows handed over from norms to convolutions.
    "  - {conv: c1, filters: 8, kernel: 1, bias: false}\n  - {batch_norm: n1}\n  - {relu: r1}\n"
    "  - {conv: c2, filters: 8, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n2}\n  - {relu: r2}\n"
    "  - {conv: c3, filters: 16, kernel: 1, bias: false}\n  - {batch_norm: n3}\n"
    "  - {add: a3, input: [n3, p0]}\n  - {relu: r3}\n"
    // A block behind it: its residual is not kept, so its own output is.
    "  - {conv: d1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: o1}\n"
    "  - {add: b1, input: [o1, r3]}\n  - {relu: s1}\n"
    // An inception block: norms only, behind it norms and others.
    "  - {conv: c4, input: s1, filters: 8, kernel: 1, bias: false}\n  - {batch_norm: n4}\n  - {relu: r4}\n"
    "  - {conv: c5, input: s1, filters: 16, kernel: 1, bias: false}\n  - {batch_norm: n5}\n  - {relu: r5}\n"
    "  - {concat: j1, input: [r4, r5]}\n"
    "  - {conv: c6, input: j1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n6}\n"
    "  - {tanh: t6}\n"
    "  - {max_pool: p6, input: j1, kernel: 3, stride: 1, pad: 1}\n"
    "  - {concat: j2, input: [t6, p6]}\n"
    // Two norms in a row, and one that is read twice.
    "  - {conv: c7, input: j2, filters: 16, kernel: 1, bias: false}\n  - {batch_norm: n7}\n"
    "  - {batch_norm: m7}\n  - {relu: r7}\n"
    "  - {conv: c8, input: r7, filters: 16, kernel: 3, pad: 1}\n"
    "  - {conv: c9, input: r7, filters: 16, kernel: 1}\n  - {add: a9, input: [c8, c9, r7]}\n"
    // A residual that other layers' backward reads before the norm that adds it is computed again.
    "  - {max_pool: q, input: a9, kernel: 3, stride: 1, pad: 1}\n"
    "  - {conv: g1, input: a9, filters: 16, kernel: 1, bias: false}\n  - {batch_norm: u1}\n"
    "  - {add: v1, input: [u1, q]}\n  - {relu: w1}\n"
    "  - {conv: g2, input: w1, filters: 16, kernel: 3, pad: 1}\n"
    "  - {conv: h2, input: g2, filters: 16, kernel: 3, pad: 1}\n  - {tanh: i2}\n"
    "  - {conv: g3, input: q, filters: 16, kernel: 3, pad: 1}\n  - {add: x1, input: [i2, g3]}\n"
    "  - average_pool\n  - flatten\n  - {dense: f1, units: 12}\n  - {batch_norm: n10}\n  - {relu: r10}\n"
    "  - {dense: f2, units: 5}\n";

/// Convolutions of single pixels whose backward the CPU runs as part of the norm behind them, for 32 samples.
inline const std::string recompute_rowwise_network =
    "input: [24, 24, 4]\nclasses: 5\nlayers:\n"
    "  - {conv: c0, filters: 64, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: n0}\n  - {relu: r0}\n"
    "  - {conv: c1, filters: 64, kernel: 1, bias: false}\n  - {batch_norm: n1}\n  - {relu: r1}\n"
    "  - {conv: c2, filters: 64, kernel: 1, bias: false}\n  - {batch_norm: n2}\n  - {relu: r2}\n"
    "  - average_pool\n  - flatten\n  - {dense: f, units: 5}\n";

}  // namespace lpsgd
