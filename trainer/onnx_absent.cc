// In place of onnx_model.cc, in a build without ONNX.
#include "core/error.h"
#include "trainer/onnx_model.h"

namespace lpsgd {

std::string onnx_model(const NetworkSpec&, std::span<const float>, std::span<const float>,
                       const std::vector<NamedBuffer>&, const OnnxOptions&, OnnxSummary*) {
  throw ConfigError(
      "export: this lpsgd was built without ONNX; install its headers and library (Debian: libonnx-dev, "
      "libprotobuf-dev) and build again");
}

}  // namespace lpsgd
