// The functions of cuBLASLt that the backend calls. The library has half a gigabyte and some hundred thousand
// addresses to relocate, so it is loaded at the first of these calls: on a machine without a GPU a
// program runs without it.
#pragma once

#include <cublasLt.h>

#ifdef LPSGD_CUBLASLT_FOLDER  // not for the emulated GPU, whose cuBLASLt is a part of the program

#include <atomic>

namespace lpsgd {

/// The address of a function of the library. DeviceError if the library cannot be loaded or has no such
/// function.
void* cublas_lt_symbol(const char* name);

template <class F>
class CublasLtFunction;

/// Called as the function is; as cublas_lt_symbol() fails, so does its first call.
template <class R, class... A>
class CublasLtFunction<R(A...)> {
 public:
  constexpr explicit CublasLtFunction(const char* name) : name_(name) {}
  R operator()(A... arguments) const {
    R (*function)(A...) = function_.load(std::memory_order_acquire);
    if (function == nullptr) {
      function = reinterpret_cast<R (*)(A...)>(cublas_lt_symbol(name_));
      function_.store(function, std::memory_order_release);
    }
    return function(arguments...);
  }

 private:
  const char* name_;
  mutable std::atomic<R (*)(A...)> function_{nullptr};
};

// Code of this namespace finds these in place of the library's own declarations.
#define LPSGD_CUBLASLT(name) inline const CublasLtFunction<decltype(::name)> name(#name)
LPSGD_CUBLASLT(cublasLtCreate);
LPSGD_CUBLASLT(cublasLtDestroy);
LPSGD_CUBLASLT(cublasLtGetStatusName);
LPSGD_CUBLASLT(cublasLtGetStatusString);
LPSGD_CUBLASLT(cublasLtGetVersion);
LPSGD_CUBLASLT(cublasLtMatmul);
LPSGD_CUBLASLT(cublasLtMatmulAlgoConfigGetAttribute);
LPSGD_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
LPSGD_CUBLASLT(cublasLtMatmulDescCreate);
LPSGD_CUBLASLT(cublasLtMatmulDescDestroy);
LPSGD_CUBLASLT(cublasLtMatmulDescSetAttribute);
LPSGD_CUBLASLT(cublasLtMatmulPreferenceCreate);
LPSGD_CUBLASLT(cublasLtMatmulPreferenceDestroy);
LPSGD_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
LPSGD_CUBLASLT(cublasLtMatrixLayoutCreate);
LPSGD_CUBLASLT(cublasLtMatrixLayoutDestroy);
LPSGD_CUBLASLT(cublasLtMatrixLayoutSetAttribute);
#undef LPSGD_CUBLASLT

}  // namespace lpsgd

#endif
