#include "nn/cuda/cublas_lt.h"

#ifdef LPSGD_CUBLASLT_FOLDER

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "core/error.h"

namespace lpsgd {
namespace {

/// Where the dynamic linker looks for it, or else where it was when the program was built.
void* open_library() {
  const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  std::string errors;
  for (const std::string& path : {file, LPSGD_CUBLASLT_FOLDER "/" + file}) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    errors += fmt::format("{}{}", errors.empty() ? "" : "; ", dlerror());
  }
  throw DeviceError("cuBLASLt: cannot be loaded: " + errors);
}

}  // namespace

void* cublas_lt_symbol(const char* name) {
  static void* const library = open_library();  // never closed
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw DeviceError(fmt::format("cuBLASLt: {}", dlerror()));
  return symbol;
}

}  // namespace lpsgd

#endif
