#include "nn/cuda/product.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace lpsgd::cuda {
namespace {

constexpr int algorithms_measured = 8;

cudaDataType_t cuda_type(DataType type) {
  return type == DataType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t name, const T& value) {
  check(cublasLtMatmulDescSetAttribute(d, name, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreference_t d, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(d, name, &value, sizeof value));
}

template <class T>
void set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t name, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(l, name, &value, sizeof value));
}

/// Row-major (rows, columns) matrices, which are column-major (columns, rows) matrices for cuBLAS.
cublasLtMatrixLayout_t layout(DataType type, std::int64_t rows, std::int64_t columns, std::int64_t batch) {
  cublasLtMatrixLayout_t out = nullptr;
  check(cublasLtMatrixLayoutCreate(&out, cuda_type(type), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), columns));
  if (batch > 1) {
    set(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
    set(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, rows * columns);
  }
  return out;
}

std::string size_text(const ProductDesc& d) {
  return fmt::format("{} x {} x {}{}", d.m, d.n, d.k,
                     d.batch > 1 ? fmt::format(", batch of {}", d.batch) : std::string());
}

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string out;
  for (const auto& [name, what] :
       {std::pair{CUBLASLT_ALGO_CONFIG_ID, "algorithm"}, std::pair{CUBLASLT_ALGO_CONFIG_TILE_ID, "tile"},
        std::pair{CUBLASLT_ALGO_CONFIG_STAGES_ID, "stages"},
        std::pair{CUBLASLT_ALGO_CONFIG_SPLITK_NUM, "split"}}) {
    std::int32_t value = 0;
    std::size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, &written) ==
        CUBLAS_STATUS_SUCCESS)
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", what, value);
  }
  return out;
}

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle)); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
};

}  // namespace

// cuBLASLt is column-major, where row-major c = a b reads c^T = b^T a^T. So b is the first operand.
Product::Product(Context& context, const ProductDesc& d, const void* a, const void* b, void* c)
    : context_(context), beta_(d.accumulate ? 1.0f : 0.0f) {
  require(d.batch == 1 || d.bias == nullptr, "a batch of products has no bias");
  const cublasComputeType_t compute =
      context.compute == Compute::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F));
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, d.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, d.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  if (d.bias) {
    epilogue = d.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, d.bias);
    set(operation_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(d.out));
  } else if (d.relu) {
    epilogue = CUBLASLT_EPILOGUE_RELU;
  }
  set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  a_ = d.a_transposed ? layout(context.type, d.k, d.m, d.batch) : layout(context.type, d.m, d.k, d.batch);
  b_ = d.b_transposed ? layout(context.type, d.n, d.k, d.batch) : layout(context.type, d.k, d.n, d.batch);
  c_ = layout(d.out, d.m, d.n, d.batch);
  choose(d, a, b, c);
}

Product::~Product() {
  for (const cublasLtMatrixLayout_t l : {a_, b_, c_})
    if (l) cublasLtMatrixLayoutDestroy(l);
  if (operation_) cublasLtMatmulDescDestroy(operation_);
}

void Product::choose(const ProductDesc& d, const void* a, const void* b, void* c) {
  std::vector<std::int64_t> key{d.m,
                                d.n,
                                d.k,
                                d.a_transposed,
                                d.b_transposed,
                                static_cast<std::int64_t>(d.out),
                                d.bias != nullptr,
                                d.relu,
                                d.accumulate,
                                d.alignment,
                                d.out_alignment};
  if (d.batch > 1) key.push_back(d.batch);  // otherwise the key is that of choices stored earlier
  if (const auto known = context_.product_choices.find(key); known != context_.product_choices.end()) {
    algorithm_ = known->second.algorithm;
    workspace_ = known->second.workspace;
    return;
  }
  const Preference preference;
  set(preference.handle, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(context_.workspace_limit));
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES})
    set(preference.handle, name, static_cast<std::uint32_t>(d.alignment));
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(preference.handle, name, static_cast<std::uint32_t>(d.out_alignment));
  // Partial sums are added in float32, in a fixed order.
  set(preference.handle, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  std::array<cublasLtMatmulHeuristicResult_t, algorithms_measured> found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(context_.blas, operation_, b_, a_, c_, c_, preference.handle,
                                     algorithms_measured, found.data(), &count);
  const std::string operation =
      fmt::format("product {} {}", static_cast<int>(context_.compute), key_text(key));
  const std::optional<std::string> earlier = context_.plan_cache.find(operation);
  bool chosen = false;
  const auto take = [&](const cublasLtMatmulHeuristicResult_t& result) {
    algorithm_ = result.algo;
    workspace_ = static_cast<std::int64_t>(result.workspaceSize);
  };
  // cuBLASLt names algorithms in the same order each time.
  const auto name_of = [&](int i) {
    return fmt::format("{} {}", i, text_of(found[static_cast<std::size_t>(i)].algo));
  };
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;
  const auto takes_earlier = [&](int i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<std::size_t>(i)];
    if (!earlier || name_of(i) != *earlier || result.state != CUBLAS_STATUS_SUCCESS) return false;
    try {
      context_.workspace(static_cast<std::int64_t>(result.workspaceSize));
      run_with(result.algo, a, b, c);
      context_.stream.synchronize();
    } catch (const DeviceError& e) {
      log::debug("{}: {}: {}", operation, *earlier, e.what());
      return false;
    }
    take(result);
    return true;
  };
  for (int i = 0; i < count && !chosen; ++i) chosen = takes_earlier(i);
  if (!chosen) {
    PlanSearch search = context_.search();
    int best = -1;
    for (int i = 0; i < count && !(best >= 0 && context_.deterministic); ++i) {
      const cublasLtMatmulHeuristicResult_t& result = found[static_cast<std::size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      if (search.over()) break;
      const std::string name = fmt::format("product ({}): {}", size_text(d), name_of(i));
      if (!context_.has_workspace(search, static_cast<std::int64_t>(result.workspaceSize))) continue;
      if (!context_.measure(search, name, [&] { run_with(result.algo, a, b, c); })) continue;
      best = i;
      take(result);
    }
    chosen = best >= 0;
    if (chosen && !context_.deterministic && !search.cut_off())
      context_.plan_cache.add(operation, name_of(best));
  }
  if (!chosen)
    throw DeviceError(fmt::format("cuBLASLt cannot run a product ({}){}", size_text(d),
                                  status == CUBLAS_STATUS_SUCCESS
                                      ? std::string()
                                      : fmt::format(": {}", cublasLtGetStatusName(status))));
  context_.product_choices[key] = {algorithm_, workspace_};
  context_.keep_workspace(workspace_);
  context_.choices.push_back(fmt::format("product ({}): {}", size_text(d), text_of(algorithm_)));
}

void Product::run_with(const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b, void* c) const {
  const float one = 1.0f;
  check(cublasLtMatmul(context_.blas, operation_, &one, b, b_, a, a_, &beta_, c, c_, c, c_, &algorithm,
                       context_.workspace(0), context_.workspace_bytes(), context_.handle()));
}

void Product::run(const void* a, const void* b, void* c) const {
  run_with(algorithm_, a, b, c);
}

}  // namespace lpsgd::cuda
