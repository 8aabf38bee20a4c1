#include "data/sequence_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lpsgd {

namespace {

std::vector<std::int64_t> lengths_of(const SequenceDataset* dataset) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; dataset && i < dataset->size(); ++i) lengths.push_back(dataset->frames(i));
  return lengths;
}

std::int64_t width_of(const SequenceDataset* speech) {
  return speech ? speech->features() : 1;
}

}  // namespace

std::int64_t frames_needed(const Dataset& dataset, const DataOptions& data) {
  const auto* speech = dynamic_cast<const SequenceDataset*>(&dataset);
  if (data.truncate > 0) return data.truncate;
  if (!speech)
    throw ConfigError("data.truncate: missing: a text is one long sequence; after how many tokens to cut it");
  const std::vector<std::int64_t> lengths = lengths_of(speech);
  return *std::max_element(lengths.begin(), lengths.end());
}

SequenceBatches::SequenceBatches(std::shared_ptr<const Dataset> dataset, const DataOptions& data,
                                 const BatchOptions& options)
    : dataset_(std::move(dataset)),
      speech_(dynamic_cast<const SequenceDataset*>(dataset_.get())),
      text_(dynamic_cast<const TextDataset*>(dataset_.get())),
      options_(options),
      truncate_(data.truncate),
      window_(data.sort_window),
      shuffle_(data.shuffle),
      lengths_(lengths_of(speech_)),
      plan_(options.global_batch) {
  require(speech_ || text_, "sequences are speech or text");
  const std::int64_t needed = frames_needed(*dataset_, data), width = width_of(speech_);
  frames_ = options.input.empty() ? needed : options.input[0];
  if (truncate_ > 0 ? needed != frames_ : needed > frames_)
    throw ConfigError(
        truncate_ > 0
            ? fmt::format("data.truncate: {} frames, but the network takes {}", truncate_, frames_)
            : fmt::format(
                  "data.dataset: the longest sequence of {} has {} frames, but the network takes {}; `input: "
                  "[any, {}]` takes what the data has, and data.truncate cuts sequences",
                  data.dataset, needed, frames_, width));
  if (!options.input.empty() && options.input.size() != (text_ ? 1u : 2u))
    throw ConfigError(fmt::format("data.dataset: {} has {}, and the network does not take them", data.dataset,
                                  text_ ? "tokens" : "feature vectors"));
  if (speech_ && !options.input.empty() && options.input[1] != width)
    throw ConfigError(fmt::format("data.dataset: frames of {} have {} features, the network takes {}",
                                  data.dataset, width, options.input[1]));
  plan_ = make_plan(0);
  if (options.training && plan_.batches() == 0)
    throw ConfigError(
        text_ ? fmt::format(
                    "train.batch_size: {} tokens of the training text are fewer than {} sequences of {} "
                    "(train.batch_size and data.truncate)",
                    text_->size(), options.global_batch, truncate_)
              : fmt::format("train.batch_size: the training set makes less than one batch of {} sequences",
                            options.global_batch));
}

SequencePlan SequenceBatches::make_plan(std::int64_t epoch) const {
  const SequencePlanOptions options{.positions = options_.global_batch,
                                    .training = options_.training,
                                    .shuffle = shuffle_,
                                    .seed = options_.seed,
                                    .epoch = epoch};
  if (text_) return token_streams(text_->size(), truncate_, options);
  if (truncate_ > 0) return carried_sequences(lengths_, truncate_, options);
  return whole_sequences(lengths_, window_, options);
}

BatchShape SequenceBatches::shape() const {
  return {.samples = options_.global_batch / options_.ranks,
          .image = {},
          .elements = frames_ * width_of(speech_),
          .labels = frames_,
          .has_lengths = true,
          .has_continues = truncate_ > 0};
}

void SequenceBatches::begin_epoch(std::int64_t epoch) {
  plan_ = make_plan(epoch);
}

BatchCounts SequenceBatches::counts(std::int64_t batch) const {
  BatchCounts counts{.valid = options_.global_batch / options_.ranks};
  for (const Piece& piece : plan_.batch(batch)) counts.global_frames += piece.frames;
  return counts;
}

void SequenceBatches::fill(Worker&, std::int64_t batch, std::int64_t position, const SampleView& out) const {
  const std::int64_t first = options_.rank * (options_.global_batch / options_.ranks);
  const Piece& piece = plan_.batch(batch)[static_cast<std::size_t>(first + position)];
  const std::int64_t width = width_of(speech_);
  if (speech_) {
    if (piece.frames > 0) speech_->read(piece.sequence, piece.first, piece.frames, out.values, out.labels);
  } else {
    const std::span<const std::int32_t> tokens =
        text_->tokens().subspan(static_cast<std::size_t>(piece.first));
    for (std::int64_t t = 0; t < piece.frames; ++t) {
      const auto at = static_cast<std::size_t>(t);
      out.values[t] = static_cast<float>(tokens[at]);
      out.labels[t] = tokens[at + 1];
    }
  }
  std::fill(out.values + piece.frames * width, out.values + frames_ * width, 0.0f);
  std::fill(out.labels + piece.frames, out.labels + frames_, 0);
  *out.length = static_cast<std::int32_t>(piece.frames);
  if (out.continues) *out.continues = piece.continues ? 1 : 0;
}

}  // namespace lpsgd
