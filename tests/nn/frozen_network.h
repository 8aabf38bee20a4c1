// A network for tests of frozen layers. In front of trained ones it has a frozen batch norm, a frozen
// dropout, a branch, a sum and a concatenation that each read a frozen and a trained value.
#pragma once

#include <string>
#include <vector>

#include "nn/network_spec.h"

namespace lpsgd {

inline const std::string frozen_network =
    "input: [12, 12, 6]\nclasses: 7\nlayers:\n"
    "  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: b1}\n  - {relu: r1}\n"
    "  - {dropout: d1, probability: 0.5}\n"
    "  - {conv: c2, filters: 16, kernel: 3, pad: 1, bias: false}\n  - {batch_norm: b2}\n"
    "  - {conv: side, filters: 16, kernel: 1, input: d1}\n"
    "  - {add: s, input: [b2, side]}\n  - {tanh: t1}\n"
    "  - {concat: j, input: [t1, d1]}\n"
    "  - {conv: c3, filters: 8, kernel: 3, stride: 2, bias: false}\n  - {batch_norm: b3}\n  - {tanh: t2}\n"
    "  - flatten\n  - {dense: f, units: 7}\n";
inline const std::vector<std::string> frozen_layers{"{c,b}1", "{c,b}2", "d1"};

inline NetworkSpec frozen_spec(const std::string& text, const std::vector<std::string>& frozen) {
  NetworkSpec out(config::parse_text(text, "net.yaml"));
  out.freeze(frozen);
  return out;
}

}  // namespace lpsgd
