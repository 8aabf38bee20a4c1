// The pixel input of a backend against a slow reference: bytes that are cropped and mirrored one by one, then
// scaled as docs/numerics.md says.
#pragma once

#include <functional>
#include <memory>

#include "nn/ops.h"

namespace lpsgd {

/// Runs every case on the backends that `make` makes, for activations of `type`: one channel, three, four and
/// more; odd widths; images of the sample's size, larger and smaller; crops within the image, over each of
/// its sides and beside it; mirrored and not.
void check_pixel_inputs(const std::function<std::unique_ptr<Backend>()>& make, DataType type);

}  // namespace lpsgd
