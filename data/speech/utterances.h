// Utterances in memory: their features and one label a frame.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

/// A network's input for a frame is the frame's features between those of `context` frames on either side, in
/// order of time. Before the first frame of the utterance stands the first, behind the last the last.
class Utterances final : public SequenceDataset {
 public:
  /// `width`: features of a frame. `content`: what content_checksum() returns.
  Utterances(std::int64_t width, std::int64_t context, std::int64_t classes, Normalization applied,
             std::uint64_t content = 0)
      : width_(width),
        context_(context),
        classes_(classes),
        applied_(std::move(applied)),
        content_(content) {}

  /// Appends an utterance: `features` are (frames, width), normalised; `labels` are (frames).
  void add(std::string name, const std::vector<float>& features, const std::vector<std::int32_t>& labels);

  std::int64_t size() const override { return static_cast<std::int64_t>(names_.size()); }
  std::int64_t classes() const override { return classes_; }
  std::string name(std::int64_t i) const override { return names_[static_cast<std::size_t>(i)]; }
  std::int64_t features() const override { return (2 * context_ + 1) * width_; }
  std::int64_t frames(std::int64_t i) const override;
  Normalization normalization() const override { return applied_; }
  std::uint64_t content_checksum() const override { return content_; }
  void read(std::int64_t i, std::int64_t first, std::int64_t count, float* features,
            std::int32_t* labels) const override;

 private:
  std::int64_t width_, context_, classes_;
  Normalization applied_;
  std::uint64_t content_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> begins_{0};  // of the utterances, in frames; one more than there are
  std::vector<float> features_;          // (all frames, width)
  std::vector<std::int32_t> labels_;     // (all frames)
};

}  // namespace lpsgd
