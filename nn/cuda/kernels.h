// The launches of the CUDA backend's own kernels. Internal to nn/cuda. Only plain types are used, for nvcc
// and the host's compiler. Every function queues its work on the stream and returns the status of the launch.
//
// Pointers are device memory. Activations are of the given DataType. They are read and written four values at
// a time if the length of their rows allows it, so arrays start at multiples of 16 bytes. Sums are taken in a
// fixed order, so the same launch gives the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/data_type.h"
#include "core/pixels.h"
#include "nn/dropout.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {

/// Whether values may be read and written `pack` at a time in rows that begin at `p` and are `stride` values
/// apart. (For arrays of their own the length of the rows says it.)
inline bool takes_packs(int pack, std::int64_t value_bytes, const void* p, std::int64_t stride) {
  return stride % pack == 0 &&
         reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(pack * value_bytes) == 0;
}

/// What the operations of a pass read on the device. A captured pass reads it anew each time it is launched.
struct PassState {
  std::uint32_t step = 0;
  std::uint32_t first = 0;  // Pass::first
  double loss_divisor = 0;
};

/// Arrays of one type and length, to be added.
inline constexpr int max_terms = 64;
struct Terms {
  const void* at[max_terms] = {};
  int count = 0;
};

// ---- pixel_input.cu

struct PixelSizes {
  std::int64_t batch = 0;
  int stored_height = 0, stored_width = 0, height = 0, width = 0, channels = 0;
};
/// out (batch, height, width, channels) = the crops of `pixels` (batch, stored size). `table` (channels, 256)
/// holds what each byte becomes and has the type of `out`.
cudaError_t launch_pixels(DataType type, const std::uint8_t* pixels, const PixelCrop* crops,
                          const void* table, void* out, const PixelSizes& sizes, cudaStream_t stream);

// ---- elementwise.cu

/// into = the sum of the terms. It becomes 0 where `mask` is not positive, if `mask` is not null, and where
/// it is negative itself, if `relu`.
cudaError_t launch_sum(DataType type, void* into, const Terms& terms, const void* mask, bool relu,
                       std::int64_t n, cudaStream_t stream);
/// into = factor * sum of the terms. `into` may be one of them.
cudaError_t launch_scaled_sum(DataType type, void* into, const Terms& terms, float factor, std::int64_t n,
                              cudaStream_t stream);
/// y of x. Of every kind but ReLU, which is a sum of one term.
cudaError_t launch_activation(DataType type, Activation kind, const void* x, void* y, std::int64_t n,
                              cudaStream_t stream);
/// dx of the sum of gradients and of `at`, the output or the input (gradient_reads_output()). dx may be one
/// of the gradients.
cudaError_t launch_activation_gradient(DataType type, Activation kind, const Terms& gradients, const void* at,
                                       void* dx, std::int64_t n, cudaStream_t stream);
cudaError_t launch_convert(const void* from, DataType from_type, void* to, DataType to_type, std::int64_t n,
                           cudaStream_t stream);
/// Copies `rows` rows of `width` values. The rows are `from_stride` and `to_stride` values apart.
cudaError_t launch_copy_rows(DataType type, const void* from, std::int64_t from_stride, void* to,
                             std::int64_t to_stride, std::int64_t rows, std::int64_t width,
                             cudaStream_t stream);
/// y = relu(y + bias) on rows of `width` values. `bias` may be null, and the ReLU may be left out.
cudaError_t launch_bias_relu(DataType type, void* y, const float* bias, bool relu, std::int64_t rows,
                             std::int64_t width, cudaStream_t stream);

// ---- multiply.cu

/// Images (batch, pixels, channels) and a gate (batch, channels). One pixel: arrays of one shape.
struct GateShape {
  std::int64_t batch = 0, pixels = 1, channels = 0;
};
/// y = x times the gate of its channel.
cudaError_t launch_multiply(DataType type, const GateShape& shape, const void* x, const void* gate, void* y,
                            cudaStream_t stream);
/// dx = g * gate and dgate = the sum over pixels of g * x. One of them may be null.
cudaError_t launch_multiply_gradient(DataType type, const GateShape& shape, const void* g, const void* x,
                                     const void* gate, void* dx, void* dgate, cudaStream_t stream);

// ---- layout.cu

/// (batch, a, b) to (batch, b, a).
cudaError_t launch_transpose(DataType type, const void* from, void* to, std::int64_t batch, std::int64_t a,
                             std::int64_t b, cudaStream_t stream);

// ---- space_to_depth.cu

/// An image's blocks of stride_h x stride_w pixels, whose values (row of the block, column, channel) are the
/// channels of one pixel. Blocks begin at the border, and what lies outside is zero. A window covers window_h
/// x window_w blocks. `channels` of a block is a multiple of 8; those beyond its values are zero.
struct BlockShape {
  std::int64_t batch = 0;
  int h = 0, w = 0, c = 0;  // of an image
  int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, kernel_h = 1, kernel_w = 1;
  int rows = 0, columns = 0, channels = 0;  // of an image in blocks
  int window_h = 1, window_w = 1;
  std::int64_t filters = 0;
};
/// Images (batch, h, w, c) to (batch, rows, columns, channels).
cudaError_t launch_space_to_depth(DataType type, const BlockShape& shape, const void* x, void* blocks,
                                  cudaStream_t stream);
/// Filters (filters, kernel_h, kernel_w, c) to (filters, window_h, window_w, channels), and back.
cudaError_t launch_filters_to_blocks(DataType type, const BlockShape& shape, const void* filters,
                                     void* blocks, cudaStream_t stream);
cudaError_t launch_filters_from_blocks(DataType type, const BlockShape& shape, const void* blocks,
                                       void* filters, cudaStream_t stream);

// ---- random_operand.cu

/// to[i] = element i of the random operand `tensor` (nn/cuda/random_operand.h), for 0 <= i < n.
cudaError_t launch_random_operand(DataType type, std::uint32_t tensor, void* to, std::int64_t n,
                                  cudaStream_t stream);

// ---- column_sums.cu

/// How an array of rows of channels is divided for sums over rows: into `tiles` groups of channels, and each
/// of these into `parts` ranges of rows. It depends on the shape alone, so that sums have the same bits on
/// every machine.
struct Cut {
  std::int64_t rows = 0, rows_each = 0;  // in all; in a part
  int channels = 0;
  int pack = 1;        // channels of a thread
  int tx = 1, ty = 1;  // threads of a block over channels and over rows
  int tiles = 1, parts = 1;
};
/// `max_pack`: 8, 4 or 1.
Cut cut_rows(DataType type, std::int64_t rows, std::int64_t channels, int max_pack = 8);
/// What a kernel that takes two sums over rows works with.
struct RowSums {
  Cut cut;
  double2* partials = nullptr;   // parts * channels
  unsigned* finished = nullptr;  // tiles, zero between launches
};

/// sums[c] = the sum of column c. If `second` is not null, it receives the sums, too. `partials` holds
/// parts * channels values.
cudaError_t launch_column_sums(DataType type, const void* x, const Cut& cut, double* partials, float* sums,
                               float* second, cudaStream_t stream);

// ---- batch_norm.cu

/// The arrays of a batch norm, with `channels` values each.
struct NormState {
  const float *weight = nullptr, *bias = nullptr;
  float *running_mean = nullptr, *running_variance = nullptr;
  float *weight_gradient = nullptr, *bias_gradient = nullptr;
  float *mean = nullptr, *scale = nullptr;  // of this pass: y = (x - mean) * scale + bias
  double* inverse = nullptr;                // 1 / sqrt(variance + eps)
  float *gradient_mean = nullptr, *slope = nullptr;
  double2* partials = nullptr;   // parts * channels
  unsigned* finished = nullptr;  // tiles, zero between launches
  double eps = 1e-5, momentum = 0.1;
};
/// Computes the batch's statistics and updates the running ones.
cudaError_t launch_norm_statistics(DataType type, const void* x, const Cut& cut, const NormState& state,
                                   cudaStream_t stream);
/// Uses the running statistics instead of the batch's.
cudaError_t launch_norm_constants(const Cut& cut, const NormState& state, cudaStream_t stream);
/// y = relu((x - mean) * scale + bias + residual). `residual` may be null. The rows of y are `stride` values
/// apart; stride and address are multiples of cut.pack values.
cudaError_t launch_normalize(DataType type, const void* x, const void* residual, void* y, std::int64_t stride,
                             bool relu, const Cut& cut, const NormState& state, cudaStream_t stream);
/// The arguments of both launches of backward.
struct NormGradient {
  Terms gradients;          // of the output
  std::int64_t stride = 0;  // of their rows, as in launch_normalize(); cut.channels if there is a `masked`
  const void* x = nullptr;
  const void* y = nullptr;  // the mask of the ReLU, if `masked` is not null
  void* masked = nullptr;   // receives the masked sum of `gradients`; null: there is only one gradient
  bool relu = false;
  void* dx = nullptr;
};
/// Computes the parameters' gradients, `masked`, and the sums that launch_norm_gradient() needs.
cudaError_t launch_norm_gradient_sums(DataType type, const NormGradient& g, const Cut& cut,
                                      const NormState& state, cudaStream_t stream);
cudaError_t launch_norm_gradient(DataType type, const NormGradient& g, const Cut& cut, const NormState& state,
                                 cudaStream_t stream);

// ---- pool.cu

struct PoolShape {
  std::int64_t batch = 0;
  int h = 0, w = 0, channels = 0, out_h = 0, out_w = 0;
  int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  bool max = true, count_pad = true;
  int out_stride = 0;  // values from an output pixel, and its gradient, to the next
};
/// Where a maximum lies in its window, in rows of the kernel's width.
using PoolPlace = std::uint16_t;
inline constexpr int max_pool_window = 1 << 16;  // values of a window
/// `place` is null if there will be no backward. Tensors begin at multiples of 16 bytes, except an output
/// with a stride, and its gradient.
cudaError_t launch_pool(DataType type, const PoolShape& shape, const void* x, void* y, PoolPlace* place,
                        cudaStream_t stream);
cudaError_t launch_pool_gradient(DataType type, const PoolShape& shape, const void* dy,
                                 const PoolPlace* place, void* dx, cudaStream_t stream);

// ---- lrn.cu

struct LrnConstants {
  std::int64_t size = 5;
  float scale = 0, beta = 0.75f, k = 1;  // scale: alpha / size
};
cudaError_t launch_lrn(DataType type, const void* x, void* y, std::int64_t pixels, std::int64_t channels,
                       LrnConstants constants, cudaStream_t stream);
cudaError_t launch_lrn_gradient(DataType type, const void* dy, const void* x, void* dx, std::int64_t pixels,
                                std::int64_t channels, LrnConstants constants, cudaStream_t stream);

// ---- dropout.cu

cudaError_t launch_dropout(DataType type, const DropoutDraws& draws, const PassState* pass,
                           std::int64_t batch, std::int64_t per_sample, const void* x, void* y,
                           std::uint8_t* kept, cudaStream_t stream);
cudaError_t launch_dropout_gradient(DataType type, const Terms& gradients, const std::uint8_t* kept,
                                    float scale, void* dx, std::int64_t n, cudaStream_t stream);

// ---- embedding.cu

/// y (count, width) = the rows of `table` with the numbers in x. A number that is out of range takes row 0
/// and is written to *bad, which is NaN otherwise.
cudaError_t launch_embedding(DataType type, const float* x, const float* table, void* y, std::int32_t* tokens,
                             float* bad, std::int64_t count, std::int64_t vocabulary, std::int64_t width,
                             cudaStream_t stream);
/// Adds the gradients of each token to its row, in order. Rows without a token do not change.
cudaError_t launch_embedding_gradient(DataType type, const void* dy, const std::int32_t* tokens,
                                      float* gradient, std::int64_t count, std::int64_t width,
                                      cudaStream_t stream);

// ---- layer_norm.cu

struct LayerNormShape {
  std::int64_t rows = 0;
  int width = 0;
  float eps = 0;
};
/// What forward keeps of a row.
using RowMoments = float2;  // mean, 1 / sqrt(variance + eps)
/// `bias` is null if there is none, `moments` if there will be no backward.
cudaError_t launch_layer_norm(DataType type, const LayerNormShape& shape, const void* x, const float* weight,
                              const float* bias, void* y, RowMoments* moments, cudaStream_t stream);
cudaError_t launch_layer_norm_gradient(DataType type, const LayerNormShape& shape, const void* g,
                                       const void* x, const float* weight, const RowMoments* moments,
                                       void* dx, cudaStream_t stream);
/// The parameters' gradients; `dbias` may be null.
cudaError_t launch_layer_norm_sums(DataType type, const void* g, const void* x, const RowMoments* moments,
                                   const RowSums& sums, float* dweight, float* dbias, cudaStream_t stream);

// ---- group_norm.cu

struct GroupNormShape {
  std::int64_t samples = 0, pixels = 0;  // pixels of a sample
  int channels = 0, groups = 0;
  float eps = 0;
  bool relu = false;  // behind the normalisation
};
/// `moments` holds a sample's groups one after the other; null if there will be no backward.
cudaError_t launch_group_norm(DataType type, const GroupNormShape& shape, const void* x, const float* weight,
                              const float* bias, void* y, RowMoments* moments, cudaStream_t stream);
/// With `relu`, g counts as 0 where the output was not positive.
cudaError_t launch_group_norm_gradient(DataType type, const GroupNormShape& shape, const void* g,
                                       const void* x, const float* weight, const float* bias,
                                       const RowMoments* moments, void* dx, cudaStream_t stream);
/// As launch_layer_norm_sums(). A pack of the cut lies within a group.
cudaError_t launch_group_norm_sums(DataType type, const GroupNormShape& shape, const void* g, const void* x,
                                   const float* weight, const float* bias, const RowMoments* moments,
                                   const RowSums& sums, float* dweight, float* dbias, cudaStream_t stream);

// ---- attention.cu

/// Heads of `width` values each, of (batch, frames, heads * width). A head's matrices have
/// (padded_frames, padded_width) values, which are multiples of 8, so that all matrices of a batch of
/// products are aligned and the products have shapes that tensor cores take. The padding is 0.
struct AttentionShape {
  std::int64_t batch = 0;
  int heads = 1, frames = 1, width = 1;
  int padded_frames = 8, padded_width = 8;
  bool causal = false;
};
/// Which weights are dropped: those of Backend::attention(), of a pass of training.
struct WeightDropout {
  DropoutDraws draws;
  const PassState* pass = nullptr;  // null: none are
};
/// A range of all pairs of sample and head, in this order. Matrices of the launches below are the range's,
/// and have less than 2^31 values each together.
struct HeadRange {
  unsigned first = 0, count = 0;
};
/// An array between rows (batch, frames), `stride` values apart, which begin with the first head's values,
/// and matrices, one for each pair.
struct HeadCopy {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t stride = 0;
};
inline constexpr int max_head_copies = 4;
struct HeadCopies {
  HeadCopy at[max_head_copies] = {};
  int count = 0;
};
/// From rows to matrices. Frames behind the end of a sequence become 0.
cudaError_t launch_split_heads(DataType type, const AttentionShape& shape, HeadRange range,
                               const HeadCopies& copies, const std::int32_t* lengths, cudaStream_t stream);
/// From matrices to rows.
cudaError_t launch_join_heads(DataType type, const AttentionShape& shape, HeadRange range,
                              const HeadCopies& copies, cudaStream_t stream);
/// weights = softmax of scores / sqrt(width) over the keys that each query sees, (padded_frames,
/// padded_frames) for each pair. Other weights are 0. log_sums (batch * heads, frames), the logarithms of the
/// sums of exponentials, is null if there will be no backward. `weights` may be `scores`.
cudaError_t launch_attention_weights(DataType type, const AttentionShape& shape, HeadRange range,
                                     const WeightDropout& dropout, const std::int32_t* lengths,
                                     const float* scores, void* weights, float* log_sums,
                                     cudaStream_t stream);
/// The weights once more, and the gradients of the scores from those of the weights. `weights` may be
/// `scores`, and `score_gradients` may be `weight_gradients`.
cudaError_t launch_attention_gradient(DataType type, const AttentionShape& shape, HeadRange range,
                                      const WeightDropout& dropout, const std::int32_t* lengths,
                                      const float* scores, const float* weight_gradients,
                                      const float* log_sums, void* weights, void* score_gradients,
                                      cudaStream_t stream);

// ---- frames.cu

/// y = x + table, for each sample's `size` values. y may be x.
cudaError_t launch_position(DataType type, const void* x, const float* table, void* y, std::int64_t batch,
                            std::int64_t size, cudaStream_t stream);
/// The first `width` of every `stride` values of y become those of `token`, `batch` times.
cudaError_t launch_token(DataType type, const float* token, void* y, std::int64_t batch, std::int64_t stride,
                         std::int64_t width, cudaStream_t stream);
/// gradient = the sum of the first `width` of every `stride` values of dy.
cudaError_t launch_token_gradient(DataType type, const void* dy, float* gradient, std::int64_t batch,
                                  std::int64_t stride, std::int64_t width, cudaStream_t stream);

// ---- loss.cu

struct LossSums {
  double loss = 0;
  long long top1 = 0, top5 = 0, scored = 0;
};
struct LossRow {
  double loss, sum;   // sum: of the exponentials
  float max;          // of the logits
  std::int32_t hits;  // 1: first, 2: among five
};
/// The label of a row that does not count is negative. `smoothing`: LossDesc::label_smoothing, or 0.
cudaError_t launch_loss(DataType type, const void* logits, const std::int32_t* labels, LossRow* rows,
                        std::int64_t count, std::int64_t classes, double smoothing, LossSums* sums,
                        cudaStream_t stream);
cudaError_t launch_loss_gradient(DataType type, const void* logits, const std::int32_t* labels,
                                 const LossRow* rows, const PassState* pass, void* gradient,
                                 std::int64_t count, std::int64_t classes, double smoothing,
                                 cudaStream_t stream);

// ---- lstm.cu

/// For conversions between rows ordered by (sample, time) and by (time, sample). Rows behind the end of a
/// sequence become 0.
struct SequenceShape {
  std::int64_t batch = 0, frames = 0;
};
cudaError_t launch_by_time(DataType type, const void* from, void* to, SequenceShape shape, std::int64_t width,
                           const std::int32_t* lengths, cudaStream_t stream);
/// As launch_by_time(), but `to` is float32.
cudaError_t launch_by_time_f32(DataType type, const void* from, float* to, SequenceShape shape,
                               std::int64_t width, const std::int32_t* lengths, cudaStream_t stream);
cudaError_t launch_by_sample(DataType type, const void* from, void* to, SequenceShape shape,
                             std::int64_t width, const std::int32_t* lengths, cudaStream_t stream);
/// Sets the values behind the ends of the sequences in `values` (sample, time, width) to 0.
cudaError_t launch_clear_tails(DataType type, void* values, SequenceShape shape, std::int64_t width,
                               const std::int32_t* lengths, cudaStream_t stream);
/// The rows n of `from` (batch, width) where marks[n] >= least, and 0 in the others. `to` may be `from`.
cudaError_t launch_marked_rows(DataType from_type, const void* from, DataType to_type, void* to,
                               std::int64_t batch, std::int64_t width, const std::int32_t* marks,
                               std::int64_t least, cudaStream_t stream);
/// Frame t of every sample. `gates` (batch, 4 cells) holds the gates' sums, which become the gates.
cudaError_t launch_lstm_cell(DataType type, float* gates, const float* before, float* cell, void* output,
                             std::int64_t batch, std::int64_t cells, std::int64_t t,
                             const std::int32_t* lengths, cudaStream_t stream);
/// `gate_gradients` receives the gradients of the gates' sums. `dc` (batch, cells) is the gradient of the
/// cells, which goes from frame t + 1 to t - 1.
cudaError_t launch_lstm_cell_gradient(DataType type, const float* gates, const float* before,
                                      const float* cell, const float* output_gradient, float* dc,
                                      void* gate_gradients, std::int64_t batch, std::int64_t cells,
                                      std::int64_t t, const std::int32_t* lengths, cudaStream_t stream);
cudaError_t launch_add_vectors(const float* a, const float* b, float* sum, std::int64_t n,
                               cudaStream_t stream);

// ---- sgd.cu

struct SgdStep {
  float* weights = nullptr;
  const float* gradients = nullptr;
  float* momentum = nullptr;
  const std::uint8_t* decayed = nullptr;  // for each sgd_group values: have they weight decay; null: all
  const float* scale = nullptr;           // of the gradients; null: 1
  const maths::StepRates* rates = nullptr;
  std::int64_t n = 0;  // a multiple of sgd_group
  float decay = 0;
  bool nesterov = false;
  const float* ratios = nullptr;            // LARS: of each tensor; null: all 1
  const std::int32_t* tensor_of = nullptr;  // LARS: of each sgd_group values
  float* second = nullptr;                  // Adam: the second moment
  bool decoupled = false;                   // AdamW
};
inline constexpr std::int64_t sgd_group = 16;
cudaError_t launch_sgd(const SgdStep& step, cudaStream_t stream);
cudaError_t launch_adam(const SgdStep& step, cudaStream_t stream);

/// A tensor in the arenas.
struct TensorRange {
  std::int64_t begin = 0, elements = 0;
  float decay = 0;      // its weight decay
  bool adapted = true;  // LARS: it has a ratio of its own
};
/// ratios[t] = LARS's ratio of each of `count` tensors. `partials` holds 2 * lars_parts * count doubles.
inline constexpr int lars_parts = 64;
cudaError_t launch_lars(const TensorRange* tensors, int count, const float* weights, const float* gradients,
                        const float* scale, float trust, double* partials, float* ratios,
                        cudaStream_t stream);
/// gradients = scale * gradients + noise, tensor by tensor. `scale` may be null.
cudaError_t launch_noise(const TensorRange* tensors, int count, float* gradients, const float* scale,
                         const maths::StepRates* rates, std::uint32_t seed, cudaStream_t stream);
/// *scale = the factor, at most 1, that reduces the 2-norm of n values to clip_norm. `partials` holds
/// norm_parts doubles. *finished is 0 between launches.
inline constexpr int norm_parts = 512;
cudaError_t launch_clip_scale(const float* gradients, std::int64_t n, double clip_norm, double* partials,
                              unsigned* finished, float* scale, cudaStream_t stream);

// ---- outer_step.cu

struct OuterUpdate {
  float *weights = nullptr, *synchronised = nullptr, *momentum = nullptr;  // null: no momentum
  const float* mean = nullptr;
  std::int64_t n = 0;
  maths::OuterRates rates;
};
/// d = s - w.
cudaError_t launch_difference(const float* s, const float* w, float* d, std::int64_t n, cudaStream_t stream);
cudaError_t launch_outer(const OuterUpdate& update, cudaStream_t stream);

}  // namespace lpsgd::cuda
