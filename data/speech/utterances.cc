#include "data/speech/utterances.h"

#include <algorithm>

#include "core/error.h"

namespace lpsgd {

void Utterances::add(std::string name, const std::vector<float>& features,
                     const std::vector<std::int32_t>& labels) {
  require(!labels.empty() && features.size() == labels.size() * static_cast<std::size_t>(width_),
          "an utterance has frames, with features and a label each");
  names_.push_back(std::move(name));
  features_.insert(features_.end(), features.begin(), features.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  begins_.push_back(static_cast<std::int64_t>(labels_.size()));
}

std::int64_t Utterances::frames(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  return begins_[at + 1] - begins_[at];
}

void Utterances::read(std::int64_t i, std::int64_t first, std::int64_t count, float* features,
                      std::int32_t* labels) const {
  const auto at = static_cast<std::size_t>(i);
  const std::int64_t begin = begins_[at], last = begins_[at + 1] - 1;
  for (std::int64_t t = begin + first; t < begin + first + count; ++t) {
    for (std::int64_t neighbour = t - context_; neighbour <= t + context_; ++neighbour) {
      const float* row = features_.data() + std::clamp(neighbour, begin, last) * width_;
      features = std::copy_n(row, width_, features);
    }
    *labels++ = labels_[static_cast<std::size_t>(t)];
  }
}

}  // namespace lpsgd
