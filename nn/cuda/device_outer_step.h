// OuterStep over arenas in device memory. In builds without CUDA, nn/cuda/absent.cc implements it.
#pragma once

#include <memory>

#include "nn/outer_step.h"

namespace lpsgd {

std::unique_ptr<OuterStep> make_device_outer_step(const OuterOptions& options, std::size_t arena,
                                                  StreamView stream);

}  // namespace lpsgd
