// Acoustic features against a direct Fourier transform, in the order of their definition.
#include <gmock/gmock.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "core/philox.h"
#include "data/speech/features.h"

namespace lpsgd {
namespace {

std::vector<std::int16_t> noisy_tones(std::size_t count) {
  PhiloxSequence random(3, RandomUse::dataset, 1);
  std::vector<std::int16_t> samples;
  for (std::size_t i = 0; i < count; ++i) {
    const double t = static_cast<double>(i) / 16000;
    const double tone = 6000 * std::sin(2 * std::numbers::pi * (300 + 4000 * t) * t) * std::sin(9 * t);
    samples.push_back(static_cast<std::int16_t>(tone + 200 * (random.uniform() - 0.5) + 40));
  }
  return samples;
}

double mel(double hertz) {
  return 2595 * std::log10(1 + hertz / 700);  // the same scale up to a factor
}

/// The power of filter j for a window that begins at `x`, by the definition.
std::vector<double> log_powers(const std::int16_t* x) {
  std::vector<double> y(400);
  for (int i = 0; i < 400; ++i)
    y[i] =
        (x[i] - 0.97 * (i > 0 ? x[i - 1] : x[0])) * (0.54 - 0.46 * std::cos(2 * std::numbers::pi * i / 399));
  std::vector<double> powers(257);
  for (int k = 0; k <= 256; ++k) {
    std::complex<double> sum = 0;
    for (int i = 0; i < 400; ++i) sum += y[i] * std::polar(1.0, -2 * std::numbers::pi * i * k / 512);
    powers[k] = std::norm(sum);
  }
  std::vector<double> out(33);
  const double low = mel(20), step = (mel(8000) - mel(20)) / 34;
  for (int j = 0; j < 33; ++j) {
    const double left = low + j * step, centre = left + step, right = centre + step;
    double sum = 0;
    for (int k = 0; k <= 256; ++k) {
      const double m = mel(k * 31.25);
      if (m > left && m <= centre) sum += powers[k] * (m - left) / (centre - left);
      if (m > centre && m < right) sum += powers[k] * (right - m) / (right - centre);
    }
    out[j] = std::log(std::max(1.0, sum));
  }
  return out;
}

TEST(SpeechFeatures, CountsFramesAsTheAlignmentsDo) {
  for (const auto& [samples, frames] : std::vector<std::pair<int, int>>{
           {0, 0}, {479, 0}, {480, 1}, {639, 1}, {640, 2}, {16000, 98}, {102400, 638}})
    EXPECT_EQ(FeatureExtractor::frames(samples), frames) << samples;
}

TEST(SpeechFeatures, FilterbankEqualsADirectTransform) {
  FeatureExtractor extractor(SpeechFeatures::filterbank);
  for (const std::size_t count : {480u, 650u, 2085u}) {  // 1, 2 and 11 frames
    const std::vector<std::int16_t> samples = noisy_tones(count);
    const std::int64_t frames = FeatureExtractor::frames(static_cast<std::int64_t>(count));
    std::vector<float> got(static_cast<std::size_t>(frames * 33));
    extractor.extract(samples, got.data());
    for (std::int64_t f = 0; f < frames; ++f) {
      const std::vector<double> expected = log_powers(samples.data() + 160 * f);
      for (int j = 0; j < 33; ++j)
        ASSERT_NEAR(got[static_cast<std::size_t>(33 * f + j)], expected[j], 2e-6 * std::abs(expected[j]))
            << "frame " << f << ", filter " << j;
    }
  }
}

TEST(SpeechFeatures, SilenceHasTheFloorsLogarithm) {
  FeatureExtractor extractor(SpeechFeatures::filterbank);
  std::vector<float> got(2 * 33, 7.0f);
  extractor.extract(std::vector<std::int16_t>(640), got.data());
  EXPECT_THAT(got, testing::Each(0.0f));
}

TEST(SpeechFeatures, CepstraFollowTheirDefinition) {
  const std::vector<std::int16_t> samples = noisy_tones(2400);
  const int frames = 13;
  std::vector<float> got(frames * 33);
  FeatureExtractor(SpeechFeatures::cepstral).extract(samples, got.data());

  std::vector<std::vector<double>> c(frames, std::vector<double>(33));
  for (int t = 0; t < frames; ++t) {
    const std::vector<double> powers = log_powers(samples.data() + 160 * t);
    for (int i = 0; i < 13; ++i)
      for (int j = 0; j < 33; ++j)
        c[t][i] += std::sqrt(2.0 / 33) * powers[j] * std::cos(std::numbers::pi * i * (j + 0.5) / 33);
  }
  for (int i = 0; i < 13; ++i) {
    double mean = 0;
    for (int t = 0; t < frames; ++t) mean += c[t][i] / frames;
    for (int t = 0; t < frames; ++t) c[t][i] -= mean;
  }
  const auto at = [&](int t) { return std::min(std::max(t, 0), frames - 1); };
  for (int i = 13; i < 33; ++i)
    for (int t = 0; t < frames; ++t)
      for (const int k : {1, 2}) c[t][i] += k * (c[at(t + k)][i - 13] - c[at(t - k)][i - 13]) / 10.0;
  for (int t = 0; t < frames; ++t)
    for (int i = 0; i < 33; ++i)
      ASSERT_NEAR(got[33 * t + i], c[t][i], 2e-5) << "frame " << t << ", feature " << i;
}

}  // namespace
}  // namespace lpsgd
