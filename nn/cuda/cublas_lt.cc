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
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* error = library == nullptr ? dlerror() : nullptr;
  const std::string first = error != nullptr ? error : "";
  if (library == nullptr) library = dlopen((LPSGD_CUBLASLT_FOLDER "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw DeviceError(fmt::format("cuBLASLt: cannot be loaded: {}; {}", first, dlerror()));
  return library;
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
