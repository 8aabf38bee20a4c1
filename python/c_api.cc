#include "python/c_api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/message_coder.h"
#include "core/config.h"
#include "core/error.h"
#include "quant/codec.h"
#include "quant/policy.h"

struct lpsgd_coder {
  lpsgd::MessageCoder coder;
  std::vector<lpsgd::TensorInfo> tensors;
  std::vector<lpsgd::CodecSpec> specs;  // by tensor
  int rank, ranks;
  std::vector<std::string> codecs;  // as text
  std::string warnings;
};

namespace lpsgd {
namespace {

thread_local std::string last_error;

/// Denormal numbers are kept in its scope, whatever the caller's thread does with them (PyTorch's
/// set_flush_denormal): the bytes of an exchange are the same on all ranks.
class KeptDenormals {
#if defined(__SSE__)
 public:
  KeptDenormals() { _mm_setcsr(before_ & ~flush_bits); }
  ~KeptDenormals() { _mm_setcsr(before_); }
  KeptDenormals(const KeptDenormals&) = delete;
  KeptDenormals& operator=(const KeptDenormals&) = delete;

 private:
  static constexpr unsigned flush_bits = 0x8040;  // flush to zero, denormals are zero
  const unsigned before_ = _mm_getcsr();
#endif
};

/// Runs `body` for a caller that takes no exceptions.
template <class Body>
int guarded(const Body& body) {
  try {
    [[maybe_unused]] const KeptDenormals kept;
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return -1;
}

/// What a pointer of the caller points to.
template <class T>
T& at(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(fmt::format("{} is a null pointer", what));
  return *pointer;
}
MessageCoder& coder_of(lpsgd_coder* coder) {
  return at(coder, "the coder").coder;
}
const MessageCoder& coder_of(const lpsgd_coder* coder) {
  return at(coder, "the coder").coder;
}

TensorInfo tensor_info(const lpsgd_tensor& tensor) {
  at(tensor.name, "a tensor's name");
  at(tensor.kind, "a tensor's kind");
  if (tensor.dimensions > 0) at(tensor.shape, "a tensor's shape");
  const std::optional<TensorKind> kind = find_tensor_kind(tensor.kind);
  if (!kind) throw Error(fmt::format("tensor {}: there is no kind '{}'", tensor.name, tensor.kind));
  TensorInfo info{tensor.name, *kind, {}, 1, 0};
  for (const std::int64_t size : std::span(tensor.shape, tensor.dimensions)) {
    info.shape.push_back(size);
    if (size < 0 || __builtin_mul_overflow(info.elements, size, &info.elements))
      throw Error(fmt::format("tensor {}: the shape ({}) is not one of a tensor", tensor.name,
                              fmt::join(std::span(tensor.shape, tensor.dimensions), ", ")));
  }
  return info;
}

/// As the matrix that `bucket: column` cuts, whatever its kind.
TensorInfo as_matrix(TensorInfo info) {
  const bool matrix = info.shape.size() > 1 && info.elements > 0;
  info.kind = matrix ? TensorKind::dense : TensorKind::bias;
  info.shape =
      matrix ? std::vector{info.shape[0], info.elements / info.shape[0]} : std::vector{info.elements};
  return info;
}

lpsgd_coder* make(const char* text, std::span<const lpsgd_tensor> given, const lpsgd_options& options) {
  PolicySpec policy;
  config::read(config::parse_text(text, "compress_gradients"), "", policy, config::Environment::keep);
  std::vector<TensorInfo> tensors, matrices;
  for (const lpsgd_tensor& tensor : given) {
    tensors.push_back(tensor_info(tensor));
    matrices.push_back(as_matrix(tensors.back()));
  }
  const std::vector<CodecSpec> codecs = assign_codecs(policy, tensors);
  std::vector<std::string> texts;
  for (const CodecSpec& codec : codecs) texts.push_back(to_text(codec));
  if (options.cuda_device < -1) throw Error(fmt::format("there is no CUDA device {}", options.cuda_device));
  MessageCoder::Options message;
  message.rank = options.rank;
  message.ranks = options.ranks;
  message.seed = options.seed;
  if (options.cuda_device >= 0) {
    message.device = Device::cuda(options.cuda_device);
    message.gradients = {message.device, static_cast<CUstream_st*>(options.gradient_stream)};
    message.messages = {message.device, static_cast<CUstream_st*>(options.message_stream)};
  }
  return new lpsgd_coder{{matrices, codecs, message},
                         matrices,
                         codecs,
                         options.rank,
                         options.ranks,
                         std::move(texts),
                         fmt::format("{}", fmt::join(unused_rules(policy, tensors), "\n"))};
}

void redistribute_residuals(lpsgd_coder& of, int old_ranks, const float* const* values,
                            const std::size_t* counts) {
  if (old_ranks < 1) throw Error(fmt::format("residuals of {} ranks", old_ranks));
  Redistribution all(of.tensors, of.specs, {old_ranks}, {.ranks = {of.ranks}}, of.rank);
  for (int r = 0; r < old_ranks; ++r) {
    ExchangeState old;
    for (std::size_t t = 0; t < of.tensors.size(); ++t)
      for (auto* round : {&old.round1, &old.round2}) {
        if (*counts > 0) at(*values, "a residual");
        round->emplace_back(*values, *values + *counts);
        ++values, ++counts;
      }
    all.add(old);
  }
  const ExchangeState mine = all.take();
  for (std::size_t t = 0; t < of.tensors.size(); ++t) {
    of.coder.set_residual(t, 1, mine.round1[t]);
    of.coder.set_residual(t, 2, mine.round2[t]);
  }
}

}  // namespace
}  // namespace lpsgd

using lpsgd::at;
using lpsgd::coder_of;
using lpsgd::guarded;

int lpsgd_api_version() {
  return lpsgd_api_version_of_header;
}
int lpsgd_wire_format_version() {
  return lpsgd::wire_format_version;
}
const char* lpsgd_last_error() {
  return lpsgd::last_error.c_str();
}

int lpsgd_coder_new(const char* policy, const lpsgd_tensor* tensors, size_t count,
                    const lpsgd_options* options, lpsgd_coder** coder) {
  return guarded([&] {
    at(policy, "the policy");
    if (count > 0) at(tensors, "the list of tensors");
    at(coder, "the place for the coder") = lpsgd::make(policy, {tensors, count}, at(options, "the options"));
  });
}
void lpsgd_coder_free(lpsgd_coder* coder) {
  delete coder;
}
const char* lpsgd_codec_of(const lpsgd_coder* coder, size_t tensor) {
  return coder != nullptr && tensor < coder->codecs.size() ? coder->codecs[tensor].c_str() : nullptr;
}
const char* lpsgd_warnings(const lpsgd_coder* coder) {
  return coder != nullptr ? coder->warnings.c_str() : "";
}

int lpsgd_add_bucket(lpsgd_coder* coder, const size_t* tensors, float* const* gradients, size_t count,
                     size_t* bucket) {
  return guarded([&] {
    at(bucket, "the place for the bucket's number");
    if (count > 0) at(tensors, "a bucket's tensors"), at(gradients, "a bucket's gradients");
    *bucket = coder_of(coder).add_bucket({tensors, tensors + count}, {gradients, count});
  });
}
int lpsgd_move_bucket(lpsgd_coder* coder, size_t bucket, float* const* gradients, size_t count) {
  return guarded([&] {
    if (count > 0) at(gradients, "a bucket's gradients");
    coder_of(coder).move_bucket(bucket, {gradients, count});
  });
}
int lpsgd_drop_bucket(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder_of(coder).drop_bucket(bucket); });
}

int lpsgd_message(lpsgd_coder* coder, size_t bucket, int which, int32_t rank, void** bytes, size_t* size) {
  return guarded([&] {
    lpsgd::MessageCoder& of = coder_of(coder);
    if (which < lpsgd_outgoing || which > lpsgd_mean)
      throw lpsgd::Error(fmt::format("there is no kind {} of messages", which));
    const auto message = which == lpsgd_outgoing   ? of.outgoing(bucket, rank)
                         : which == lpsgd_incoming ? of.incoming(bucket, rank)
                                                   : of.mean(bucket, rank);
    at(bytes, "the place for a message") = message.data();
    at(size, "the place for its size") = message.size();
  });
}

int lpsgd_begin(lpsgd_coder* coder, uint32_t step) {
  return guarded([&] { coder_of(coder).begin(step); });
}
int lpsgd_encode(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder_of(coder).encode(bucket); });
}
int lpsgd_reduce(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder_of(coder).reduce(bucket); });
}
int lpsgd_decode(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder_of(coder).decode(bucket); });
}
int lpsgd_end(lpsgd_coder* coder) {
  return guarded([&] { coder_of(coder).end(); });
}
int lpsgd_take_seconds(lpsgd_coder* coder, double* encode, double* decode) {
  return guarded([&] {
    double& encoding = at(encode, "the place for seconds");
    double& decoding = at(decode, "the place for seconds");
    const lpsgd::MessageCoder::Seconds seconds = coder_of(coder).take_seconds();
    encoding = seconds.encode;
    decoding = seconds.decode;
  });
}

int lpsgd_get_residual(const lpsgd_coder* coder, size_t tensor, int round, float* values, size_t* count) {
  return guarded([&] {
    const lpsgd::MessageCoder& of = coder_of(coder);
    at(count, "a residual's number of values");
    if (values == nullptr) {
      *count = of.residual_size(tensor, round);
      return;
    }
    const std::vector<float> residual = of.residual(tensor, round);
    if (*count != residual.size())
      throw lpsgd::Error(
          fmt::format("memory for {} values of a residual, which has {}", *count, residual.size()));
    std::ranges::copy(residual, values);
  });
}
int lpsgd_set_residual(lpsgd_coder* coder, size_t tensor, int round, const float* values, size_t count) {
  return guarded([&] {
    if (count > 0) at(values, "a residual's values");
    coder_of(coder).set_residual(tensor, round, {values, count});
  });
}
int lpsgd_redistribute_residuals(lpsgd_coder* coder, int32_t old_ranks, const float* const* values,
                                 const size_t* counts) {
  return guarded([&] {
    lpsgd_coder& of = at(coder, "the coder");
    at(values, "the list of residuals");
    at(counts, "the list of their sizes");
    lpsgd::redistribute_residuals(of, old_ranks, values, counts);
  });
}
