// The part of `lpsgd bench codec` that runs on a GPU.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "quant/codec.h"

namespace lpsgd {

inline constexpr std::int64_t bench_contributions = 4;  // of the owner's step

/// One object per codec and operation. DeviceError without a GPU, or in a build without CUDA.
nlohmann::ordered_json bench_codec_cuda(const std::vector<CodecSpec>& specs, std::int64_t elements,
                                        std::int64_t repeats);

}  // namespace lpsgd
