#include "python/c_api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// Runs `body` for a caller that takes no exceptions.
template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return -1;
}

TensorInfo tensor_info(const lpsgd_tensor& tensor) {
  const std::optional<TensorKind> kind = find_tensor_kind(tensor.kind);
  if (!kind) throw Error(fmt::format("tensor {}: there is no kind '{}'", tensor.name, tensor.kind));
  TensorInfo info{tensor.name, *kind, {}, 1, 0};
  for (const std::int64_t size : std::span(tensor.shape, tensor.dimensions)) {
    info.shape.push_back(size);
    info.elements *= size;
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
  std::vector<ExchangeState> old(static_cast<std::size_t>(std::max(0, old_ranks)));
  for (ExchangeState& state : old)
    for (std::size_t t = 0; t < of.tensors.size(); ++t)
      for (auto* round : {&state.round1, &state.round2}) {
        round->emplace_back(*values, *values + *counts);
        ++values, ++counts;
      }
  const ExchangeState mine =
      redistribute(old, of.tensors, of.specs, of.ranks)[static_cast<std::size_t>(of.rank)];
  for (std::size_t t = 0; t < of.tensors.size(); ++t) {
    of.coder.set_residual(t, 1, mine.round1[t]);
    of.coder.set_residual(t, 2, mine.round2[t]);
  }
}

}  // namespace
}  // namespace lpsgd

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
  return guarded([&] { *coder = lpsgd::make(policy, {tensors, count}, *options); });
}
void lpsgd_coder_free(lpsgd_coder* coder) {
  delete coder;
}
const char* lpsgd_codec_of(const lpsgd_coder* coder, size_t tensor) {
  return tensor < coder->codecs.size() ? coder->codecs[tensor].c_str() : nullptr;
}
const char* lpsgd_warnings(const lpsgd_coder* coder) {
  return coder->warnings.c_str();
}

int lpsgd_add_bucket(lpsgd_coder* coder, const size_t* tensors, float* const* gradients, size_t count,
                     size_t* bucket) {
  return guarded([&] { *bucket = coder->coder.add_bucket({tensors, tensors + count}, {gradients, count}); });
}
int lpsgd_move_bucket(lpsgd_coder* coder, size_t bucket, float* const* gradients, size_t count) {
  return guarded([&] { coder->coder.move_bucket(bucket, {gradients, count}); });
}
int lpsgd_drop_bucket(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder->coder.drop_bucket(bucket); });
}

int lpsgd_message(lpsgd_coder* coder, size_t bucket, int which, int32_t rank, void** bytes, size_t* size) {
  return guarded([&] {
    const auto message = which == lpsgd_outgoing   ? coder->coder.outgoing(bucket, rank)
                         : which == lpsgd_incoming ? coder->coder.incoming(bucket, rank)
                                                   : coder->coder.mean(bucket, rank);
    *bytes = message.data();
    *size = message.size();
  });
}

int lpsgd_begin(lpsgd_coder* coder, uint32_t step) {
  return guarded([&] { coder->coder.begin(step); });
}
int lpsgd_encode(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder->coder.encode(bucket); });
}
int lpsgd_reduce(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder->coder.reduce(bucket); });
}
int lpsgd_decode(lpsgd_coder* coder, size_t bucket) {
  return guarded([&] { coder->coder.decode(bucket); });
}
int lpsgd_end(lpsgd_coder* coder) {
  return guarded([&] { coder->coder.end(); });
}
int lpsgd_take_seconds(lpsgd_coder* coder, double* encode, double* decode) {
  return guarded([&] {
    const lpsgd::MessageCoder::Seconds seconds = coder->coder.take_seconds();
    *encode = seconds.encode;
    *decode = seconds.decode;
  });
}

int lpsgd_get_residual(const lpsgd_coder* coder, size_t tensor, int round, float* values, size_t* count) {
  return guarded([&] {
    if (values == nullptr) {
      *count = coder->coder.residual_size(tensor, round);
      return;
    }
    const std::vector<float> residual = coder->coder.residual(tensor, round);
    lpsgd::require(*count == residual.size(), "the memory for a residual has another size");
    std::ranges::copy(residual, values);
  });
}
int lpsgd_set_residual(lpsgd_coder* coder, size_t tensor, int round, const float* values, size_t count) {
  return guarded([&] { coder->coder.set_residual(tensor, round, {values, count}); });
}
int lpsgd_redistribute_residuals(lpsgd_coder* coder, int32_t old_ranks, const float* const* values,
                                 const size_t* counts) {
  return guarded([&] { lpsgd::redistribute_residuals(*coder, old_ranks, values, counts); });
}
