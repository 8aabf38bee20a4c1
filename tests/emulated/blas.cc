// cuBLASLt's matrix products as lpsgd uses them: column-major matrices of float32 or bfloat16, with bias and
// ReLU, or without a bias in batches of matrices that do not overlap. Anything else ends the program.
#include <cublasLt.h>

#include <cstring>
#include <vector>

#include "tests/emulated/machine.h"
#include "tests/emulated/numbers.h"

using namespace lpsgd::emulated;

namespace {

struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t stride;
  std::int32_t batch = 1;
  std::int64_t step = 0;  // values from a matrix of the batch to the next
  bool bf16() const { return type == CUDA_R_16BF; }
  std::uint64_t value_bytes() const { return bf16() ? 2 : 4; }
  std::uint64_t matrix_bytes() const {
    return ((columns - 1) * static_cast<std::uint64_t>(stride) + rows) * value_bytes();
  }
  std::uint64_t step_bytes() const { return static_cast<std::uint64_t>(step) * value_bytes(); }
  std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(batch - 1) * step_bytes() + matrix_bytes();
  }
};
struct Operation {
  cublasComputeType_t compute;
  cublasOperation_t a_transposed, b_transposed;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  cudaDataType bias_type;
};
struct Preference {
  std::uint32_t alignment[4];
};
/// An algorithm, and the alignment of operands in bytes that it needs.
struct Algorithm {
  std::int32_t id;
  std::uint32_t alignment;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));

template <class T, class Opaque>
T& as(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}

/// Sets an attribute, which must have the size of its member.
template <class T>
cublasStatus_t set(T& member, const void* value, std::size_t bytes) {
  if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

constexpr Algorithm algorithms[] = {{1, 16}, {2, 16}, {3, 8}, {4, 4}, {5, 2}};

/// Whether all matrices of the batch are.
bool is_aligned(const Layout& l, const void* at, std::uint32_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0 && (l.batch == 1 || l.step_bytes() % bytes == 0);
}

/// The rows or columns of a matrix of the batch, one after the other, as float.
std::vector<float> vectors(const Layout& l, const void* data, std::int32_t matrix, bool by_column,
                           bool tf32) {
  std::vector<float> out;
  out.reserve(l.rows * l.columns);
  const std::uint64_t outer = by_column ? l.columns : l.rows, inner = by_column ? l.rows : l.columns;
  for (std::uint64_t o = 0; o < outer; ++o)
    for (std::uint64_t i = 0; i < inner; ++i) {
      const auto column = static_cast<std::int64_t>(by_column ? o : i);
      const auto row = static_cast<std::int64_t>(by_column ? i : o);
      const float x = read(data, l.bf16(), matrix * l.step + column * l.stride + row);
      out.push_back(tf32 ? to_tf32(x) : x);
    }
  return out;
}

}  // namespace

const char* cublasLtGetStatusName(cublasStatus_t) {
  return "CUBLAS_STATUS_OF_THE_EMULATED_GPU";
}
const char* cublasLtGetStatusString(cublasStatus_t) {
  return "the emulated GPU refuses";
}
std::size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  as<Layout>(*layout) = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name, const void* value,
                                                std::size_t bytes) {
  Layout& l = as<Layout>(layout);
  switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(l.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(l.step, value, bytes);
    default:
      undefined("an attribute of a matrix that is not emulated");
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *operation = new cublasLtMatmulDescOpaque_t{};
  as<Operation>(*operation) = {compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                               nullptr, CUDA_R_32F};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name, const void* value,
                                              std::size_t bytes) {
  Operation& o = as<Operation>(operation);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(o.a_transposed, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(o.b_transposed, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(o.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(o.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(o.bias_type, value, bytes);
    default:
      undefined("an attribute of a product that is not emulated");
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  as<Preference>(*preference) = {{256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, std::size_t bytes) {
  Preference& p = as<Preference>(preference);
  switch (name) {
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(p.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(p.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(p.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(p.alignment[3], value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:  // no algorithm needs workspace or adds partial sums
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return CUBLAS_STATUS_SUCCESS;
    default:
      undefined("an attribute of a preference that is not emulated");
  }
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t name, void* value,
                                                    std::size_t bytes, std::size_t* written) {
  if (name != CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_INVALID_VALUE;
  *written = bytes;
  std::memcpy(value, &as<const Algorithm>(algorithm).id, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int max,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  const Operation& o = as<Operation>(operation);
  const Layout &la = as<Layout>(a), &lb = as<Layout>(b), &lc = as<Layout>(c), &ld = as<Layout>(d);
  *count = 0;
  const auto [m, ka] =
      o.a_transposed == CUBLAS_OP_T ? std::pair{la.columns, la.rows} : std::pair{la.rows, la.columns};
  const auto [kb, n] =
      o.b_transposed == CUBLAS_OP_T ? std::pair{lb.columns, lb.rows} : std::pair{lb.rows, lb.columns};
  if (ka != kb || lc.rows != m || lc.columns != n || ld.rows != m || ld.columns != n || la.type != lb.type ||
      lc.type != ld.type || la.batch < 1 || lb.batch != la.batch || lc.batch != la.batch ||
      ld.batch != la.batch)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (la.batch > 1 && o.bias != nullptr) undefined("a batch of products with a bias is not emulated");
  if (la.type == CUDA_R_32F && ld.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (o.compute != CUBLAS_COMPUTE_32F && (la.bf16() || o.compute != CUBLAS_COMPUTE_32F_FAST_TF32))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto offer = [&](const Algorithm& algorithm, cublasStatus_t state) {
    if (*count == max) return;
    cublasLtMatmulHeuristicResult_t& r = found[(*count)++];
    r = {};
    as<Algorithm>(&r.algo) = algorithm;
    r.state = state;
  };
  offer({0, 1}, CUBLAS_STATUS_NOT_SUPPORTED);  // cuBLASLt, too, lists algorithms that cannot run
  for (const Algorithm& algorithm : algorithms) {
    bool fits = true;
    for (const std::uint32_t alignment : as<Preference>(preference).alignment)
      fits = fits && alignment >= algorithm.alignment;
    if (fits) offer(algorithm, CUBLAS_STATUS_SUCCESS);
  }
  return *count > 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* chosen, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const Operation o = as<Operation>(operation);
  const Layout la = as<Layout>(a_layout), lb = as<Layout>(b_layout), lc = as<Layout>(c_layout),
               ld = as<Layout>(d_layout);
  const Algorithm algorithm = as<const Algorithm>(chosen);
  if (!is_aligned(la, a, algorithm.alignment) || !is_aligned(lb, b, algorithm.alignment) ||
      !is_aligned(lc, c, algorithm.alignment) || !is_aligned(ld, d, algorithm.alignment))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.id == 0 || (workspace_bytes > 0 && !is_device_memory(workspace, workspace_bytes)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const bool adds_bias = o.epilogue == CUBLASLT_EPILOGUE_BIAS || o.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  const bool relu = o.epilogue == CUBLASLT_EPILOGUE_RELU || o.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
  if (adds_bias != (o.bias != nullptr)) return CUBLAS_STATUS_INVALID_VALUE;
  std::vector<std::int64_t> key;
  if (keep == 0)
    for (const std::int64_t part : {reinterpret_cast<std::int64_t>(a),
                                    reinterpret_cast<std::int64_t>(b),
                                    reinterpret_cast<std::int64_t>(d),
                                    reinterpret_cast<std::int64_t>(o.bias),
                                    static_cast<std::int64_t>(la.rows),
                                    static_cast<std::int64_t>(la.columns),
                                    static_cast<std::int64_t>(ld.rows),
                                    static_cast<std::int64_t>(ld.columns),
                                    std::int64_t{o.a_transposed},
                                    std::int64_t{o.b_transposed},
                                    std::int64_t{o.epilogue},
                                    std::int64_t{o.bias_type},
                                    la.stride,
                                    lb.stride,
                                    ld.stride,
                                    std::int64_t{o.compute},
                                    std::int64_t{la.type},
                                    std::int64_t{ld.type},
                                    std::int64_t{la.batch},
                                    la.step,
                                    lb.step,
                                    ld.step})
      key.push_back(part);
  const auto is_within = [&](const Layout& l, const void* at) { return is_device_memory(at, l.bytes()); };
  if (c != d || lc.step != ld.step || overlap(a, la.bytes(), d, ld.bytes()) ||
      overlap(b, lb.bytes(), d, ld.bytes()))
    undefined("a product is written over what it reads");
  for (const Layout& l : {la, lb, ld})
    if (l.batch > 1 && (l.step < 0 || l.step_bytes() < l.matrix_bytes()))
      undefined("matrices of a batch overlap");
  if (!is_within(la, a) || !is_within(lb, b) || !is_within(ld, d)) undefined("a matrix beyond its memory");
  queue(
      stream,
      [=] {
        const bool tf32 = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
        for (std::int32_t matrix = 0; matrix < ld.batch; ++matrix) {
          const std::vector<float> rows = vectors(la, a, matrix, o.a_transposed == CUBLAS_OP_T, tf32),
                                   columns = vectors(lb, b, matrix, o.b_transposed != CUBLAS_OP_T, tf32);
          const std::uint64_t k = rows.size() / ld.rows;
          for (std::uint64_t j = 0; j < ld.columns; ++j)
            for (std::uint64_t i = 0; i < ld.rows; ++i) {
              const std::int64_t at =
                  matrix * ld.step + static_cast<std::int64_t>(j) * ld.stride + static_cast<std::int64_t>(i);
              double y = static_cast<double>(scale) *
                         dot(rows.data() + i * k, columns.data() + j * k, static_cast<std::int64_t>(k));
              if (keep != 0) y += static_cast<double>(keep) * static_cast<double>(read(c, ld.bf16(), at));
              if (adds_bias)
                y += static_cast<double>(
                    read(o.bias, o.bias_type == CUDA_R_16BF, static_cast<std::int64_t>(i)));
              if (relu && y < 0) y = 0;
              write(d, ld.bf16(), at, static_cast<float>(y));
            }
        }
      },
      key);
  queue_delay(stream, delay_of("LPSGD_EMULATED_SLOW_ALGORITHMS", algorithm.id));
  return CUBLAS_STATUS_SUCCESS;
}
