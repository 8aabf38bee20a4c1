// The generated data set: it never changes, and a linear model cannot learn it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "core/checksum.h"
#include "core/philox.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

std::shared_ptr<const ImageDataset> shapes(Split split, std::int64_t samples) {
  DataOptions options;
  options.dataset = "shapes";
  options.train_samples = options.test_samples = samples;
  return open_images(options, split);
}

std::vector<std::uint8_t> bytes(const ImageDataset& set) {
  std::vector<std::uint8_t> out;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    out.push_back(static_cast<std::uint8_t>(set.label(i)));
    out.insert(out.end(), pixels_of(set, i).begin(), pixels_of(set, i).end());
  }
  return out;
}

TEST(Shapes, HasBalancedClassesAndTheSizesAsked) {
  const auto set = shapes(Split::train, 0);
  EXPECT_EQ(set->size(), 20000);
  EXPECT_EQ(set->fixed_shape(), (ImageShape{32, 32, 3}));
  std::vector<int> counts(static_cast<std::size_t>(set->classes()));
  for (std::int64_t i = 0; i < set->size(); ++i) ++counts.at(static_cast<std::size_t>(set->label(i)));
  EXPECT_EQ(counts, std::vector<int>(10, 2000));
  EXPECT_EQ(shapes(Split::test, 0)->size(), 4000);
  EXPECT_EQ(shapes(Split::test, 33)->size(), 33);
}

TEST(Shapes, IsAFunctionOfSampleAndSplitAlone) {
  const auto few = bytes(*shapes(Split::train, 30));
  const auto many = bytes(*shapes(Split::train, 60));
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  EXPECT_NE(few, bytes(*shapes(Split::test, 30)));
  const auto set = shapes(Split::train, 200);
  std::set<std::vector<std::uint8_t>> images;
  for (std::int64_t i = 0; i < 200; ++i) images.emplace(pixels_of(*set, i).begin(), pixels_of(*set, i).end());
  EXPECT_EQ(images.size(), 200u);
}

TEST(Shapes, NeverChanges) {
  // A change of a single pixel would make accuracies of different versions incomparable.
  const auto sum = [](Split split) {
    const auto all = bytes(*shapes(split, 500));
    return checksum(std::as_bytes(std::span(all)));
  };
  EXPECT_EQ(sum(Split::train), "23284a541db92f1b8e55ea65ad90622a");
  EXPECT_EQ(sum(Split::test), "581ee3da265d965a7f889b94de9aef43");
}

/// Softmax regression on pixels scaled to about +-1, by SGD with momentum and a falling rate.
class Linear {
 public:
  explicit Linear(std::size_t inputs)
      : inputs_(inputs), weights_(10 * (inputs + 1)), speed_(weights_.size()) {}

  void train(const ImageDataset& set, int epochs, float rate) {
    const std::size_t batch = 50;
    std::vector<std::int64_t> order(static_cast<std::size_t>(set.size()));
    std::iota(order.begin(), order.end(), 0);
    std::vector<float> gradient(weights_.size());
    for (int e = 0; e < epochs; ++e) {
      PhiloxSequence random(1, RandomUse::shuffle, static_cast<std::uint32_t>(e));
      for (std::size_t left = order.size(); left > 1; --left)
        std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
      for (std::size_t from = 0; from + batch <= order.size(); from += batch) {
        const float done =
            (static_cast<float>(e) + static_cast<float>(from) / static_cast<float>(order.size())) /
            static_cast<float>(epochs);
        std::fill(gradient.begin(), gradient.end(), 0.0f);
        for (std::size_t i = from; i < from + batch; ++i) accumulate(set, order[i], gradient);
        for (std::size_t k = 0; k < weights_.size(); ++k) {
          speed_[k] = 0.9f * speed_[k] + gradient[k] / static_cast<float>(batch);
          weights_[k] -= rate * (1 - done) * speed_[k];
        }
      }
    }
  }

  double accuracy(const ImageDataset& set) {
    std::int64_t right = 0;
    for (std::int64_t i = 0; i < set.size(); ++i) {
      const std::vector<float> p = scores(pixels_of(set, i));
      right += std::max_element(p.begin(), p.end()) - p.begin() == set.label(i);
    }
    return 100.0 * static_cast<double>(right) / static_cast<double>(set.size());
  }

 private:
  std::vector<float> scores(std::span<const std::uint8_t> image) {
    x_.resize(inputs_);
    for (std::size_t i = 0; i < inputs_; ++i) x_[i] = (static_cast<float>(image[i]) - 128.0f) / 64.0f;
    std::vector<float> out(10);
    for (std::size_t c = 0; c < 10; ++c) {
      const float* w = &weights_[c * (inputs_ + 1)];
      float parts[16] = {};
      for (std::size_t i = 0; i < inputs_; i += 16)
        for (std::size_t j = 0; j < 16; ++j) parts[j] += w[i + j] * x_[i + j];
      out[c] = std::accumulate(std::begin(parts), std::end(parts), w[inputs_]);
    }
    return out;
  }

  void accumulate(const ImageDataset& set, std::int64_t sample, std::vector<float>& gradient) {
    std::vector<float> p = scores(pixels_of(set, sample));
    const float top = *std::max_element(p.begin(), p.end());
    float sum = 0;
    for (float& v : p) sum += v = std::exp(v - top);
    for (std::size_t c = 0; c < 10; ++c) {
      const float d = p[c] / sum - (set.label(sample) == static_cast<std::int32_t>(c) ? 1.0f : 0.0f);
      float* g = &gradient[c * (inputs_ + 1)];
      for (std::size_t i = 0; i < inputs_; ++i) g[i] += d * x_[i];
      g[inputs_] += d;
    }
  }

  std::size_t inputs_;
  std::vector<float> weights_, speed_, x_;
};

TEST(Shapes, ALinearModelStaysBelow60Percent) {
  const auto train = shapes(Split::train, 10000), test = shapes(Split::test, 2000);
  Linear model(3072);
  model.train(*train, 6, 0.003f);
  const double on_train = model.accuracy(*train), on_test = model.accuracy(*test);
  RecordProperty("train", std::to_string(on_train));
  RecordProperty("test", std::to_string(on_test));
  EXPECT_GT(on_train, 20.0) << "the model has not learned: the ceiling means nothing";
  EXPECT_LT(on_test, 60.0);
}

}  // namespace
}  // namespace lpsgd
