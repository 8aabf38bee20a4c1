// Which part of which sequence lies where in an epoch's batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lpsgd {

/// Frames [first, first + frames) of a sequence. A position of a batch without a sequence has 0 frames.
struct Piece {
  std::int64_t sequence = 0, first = 0, frames = 0;
  /// Whether the piece goes on where the one at the same position of the batch before ended.
  bool continues = false;
};

/// The pieces of an epoch: of each batch, one at each position of the global batch.
class SequencePlan {
 public:
  explicit SequencePlan(std::int64_t positions) : positions_(positions) {}
  std::int64_t positions() const { return positions_; }
  std::int64_t batches() const { return static_cast<std::int64_t>(pieces_.size()) / positions_; }
  /// (positions)
  std::span<const Piece> batch(std::int64_t b) const {
    return std::span(pieces_).subspan(static_cast<std::size_t>(b * positions_),
                                      static_cast<std::size_t>(positions_));
  }
  /// Makes it `batches` long. New positions have no frames.
  void resize(std::int64_t batches) { pieces_.resize(static_cast<std::size_t>(batches * positions_)); }
  Piece& at(std::int64_t b, std::int64_t position) {
    return pieces_[static_cast<std::size_t>(b * positions_ + position)];
  }

 private:
  std::int64_t positions_;
  std::vector<Piece> pieces_;  // (batches, positions)
};

struct SequencePlanOptions {
  std::int64_t positions = 1;  // of the global batch
  bool training = true;
  bool shuffle = true;  // in training
  std::uint32_t seed = 1;
  std::int64_t epoch = 0;
};

/// Batches of whole sequences of similar length. In training, the sequences are shuffled (epoch_order()) and
/// those beyond the last full batch are left out; each `window` batches' worth of them is sorted by length
/// and cut into batches; then the batches are shuffled, by draws of PhiloxSequence(seed, shuffle, epoch, 1).
/// Without shuffling, and in evaluation, the sequences are in order, and batches, too; evaluation sorts all
/// of them and keeps the last partial batch.
///
/// In a batch, the positions that belong to one of 2, 4, 8, ... ranks hold about as many frames as those of
/// any other: of the sequences by length, the 1st, 4th, 5th, 8th, 9th, ... belong to the first half of the
/// positions, the others to the second, and likewise within the halves.
SequencePlan whole_sequences(std::span<const std::int64_t> lengths, std::int64_t window,
                             const SequencePlanOptions& options);

/// A stream of sequences at each position, cut into pieces of at most `truncate` frames. The sequences,
/// shuffled in training, go one by one to the position that is free first, the lowest of several. Training
/// has as many batches as the pieces of all sequences would fill, rounded down; what is behind them is left
/// out. Evaluation goes on until all are done.
SequencePlan carried_sequences(std::span<const std::int64_t> lengths, std::int64_t truncate,
                               const SequencePlanOptions& options);

/// The tokens of a text, cut into a contiguous part for each position. Batch t has frames [t truncate, (t +
/// 1) truncate) of each; all continue but the first. In training, each part has as many whole
/// pieces of `truncate` as fit, and the rest of it is left out. In evaluation, part p of P has tokens
/// [floor(p n/P), floor((p + 1) n/P)). A piece's `first` counts in the text; `sequence` is the position.
SequencePlan token_streams(std::int64_t tokens, std::int64_t truncate, const SequencePlanOptions& options);

}  // namespace lpsgd
