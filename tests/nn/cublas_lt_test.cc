// cuBLASLt is loaded by the first call of one of its functions, and not before.
#include "nn/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/device.h"
#include "core/error.h"
#include "nn/cuda/backend.h"

namespace lpsgd {
namespace {

bool is_loaded() {
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  return dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

TEST(CublasLt, IsLoadedAtItsFirstUse) {
  if (cuda_devices().count == 0) {
    EXPECT_NE(cublas_version(), "");
    EXPECT_FALSE(is_loaded()) << "a program without a GPU asks for its version alone";
  }
  EXPECT_EQ(cublasLtGetVersion() / 10000, static_cast<std::size_t>(CUBLAS_VER_MAJOR));
  EXPECT_TRUE(is_loaded());
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

TEST(CublasLt, AFunctionThatIsNotThereIsNamed) {
  try {
    cublas_lt_symbol("cublasLtNoSuchFunction");
    ADD_FAILURE() << "there is one";
  } catch (const DeviceError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(testing::StartsWith("cuBLASLt: "),
                                         testing::HasSubstr("cublasLtNoSuchFunction")));
  }
}

}  // namespace
}  // namespace lpsgd
