#include "data/speech/features.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lpsgd {

namespace {

constexpr int bands = FeatureExtractor::features;
constexpr double sample_rate = 16000, lowest = 20, highest = 8000, pre_emphasis = 0.97;
constexpr int coefficients = 13, second_differences = 7;
static_assert(2 * coefficients + second_differences == bands);

double mel(double hertz) {
  return 1127 * std::log1p(hertz / 700);
}

}  // namespace

FeatureExtractor::FeatureExtractor(SpeechFeatures kind)
    : kind_(kind),
      hamming_(window),
      roots_(points / 2),
      spectrum_(points),
      reversed_(points),
      filters_(bands) {
  constexpr double pi = std::numbers::pi;
  for (int i = 0; i < window; ++i) hamming_[i] = 0.54 - 0.46 * std::cos(2 * pi * i / (window - 1));
  for (int k = 0; k < points / 2; ++k) roots_[k] = std::polar(1.0, -2 * pi * k / points);
  for (int i = 1; i < points; ++i) reversed_[i] = reversed_[i / 2] / 2 + (i % 2) * (points / 2);

  const double step = (mel(highest) - mel(lowest)) / (bands + 1);
  for (int j = 0; j < bands; ++j) {
    Filter& filter = filters_[j];
    const double centre = mel(lowest) + (j + 1) * step;
    for (int k = 0; k <= points / 2; ++k) {
      const double weight = 1 - std::abs(mel(k * sample_rate / points) - centre) / step;
      if (weight <= 0) continue;
      if (filter.weights.empty()) filter.first = k;
      filter.weights.push_back(weight);
    }
  }
  for (int i = 0; i < coefficients; ++i)
    for (int j = 0; j < bands; ++j)
      cosines_.push_back(std::sqrt(2.0 / bands) * std::cos(pi * i * (j + 0.5) / bands));
}

std::int64_t FeatureExtractor::frames(std::int64_t samples) {
  return std::max<std::int64_t>(0, samples / shift - 2);
}

void FeatureExtractor::extract(std::span<const std::int16_t> samples, float* out) {
  const std::int64_t count = frames(static_cast<std::int64_t>(samples.size()));
  filterbank(samples, count);
  if (kind_ == SpeechFeatures::filterbank)
    std::copy(log_powers_.begin(), log_powers_.end(), out);
  else
    cepstra(count, out);
}

/// Two windows are transformed at once: one is the real part, the other the imaginary part.
void FeatureExtractor::filterbank(std::span<const std::int16_t> samples, std::int64_t frames) {
  log_powers_.resize(static_cast<std::size_t>(frames * features));
  for (std::int64_t f = 0; f < frames; f += 2) {
    const std::int16_t* first = samples.data() + f * shift;
    const std::int16_t* second = f + 1 < frames ? first + shift : nullptr;
    std::fill(spectrum_.begin(), spectrum_.end(), Complex());
    for (int i = 0; i < window; ++i) {
      const auto emphasised = [&](const std::int16_t* x) {
        return x ? (x[i] - pre_emphasis * x[std::max(0, i - 1)]) * hamming_[i] : 0.0;
      };
      spectrum_[reversed_[i]] = {emphasised(first), emphasised(second)};
    }
    transform();
    log_powers(false, &log_powers_[static_cast<std::size_t>(f * features)]);
    if (second) log_powers(true, &log_powers_[static_cast<std::size_t>((f + 1) * features)]);
  }
}

/// The fast Fourier transform of `spectrum_`, whose values lie in bit-reversed order (Cooley and Tukey,
/// 1965).
void FeatureExtractor::transform() {
  for (int half = 1; half < points; half *= 2) {
    const int stride = points / (2 * half);
    for (int begin = 0; begin < points; begin += 2 * half) {
      for (int k = 0; k < half; ++k) {
        Complex& a = spectrum_[begin + k];
        Complex& b = spectrum_[begin + k + half];
        const Complex root = roots_[k * stride];
        // Written out: the operator of std::complex checks for infinities.
        const Complex turned(root.real() * b.real() - root.imag() * b.imag(),
                             root.real() * b.imag() + root.imag() * b.real());
        b = a - turned;
        a += turned;
      }
    }
  }
}

void FeatureExtractor::log_powers(bool second, double* out) const {
  for (std::size_t j = 0; j < filters_.size(); ++j) {
    double sum = 0;
    for (std::size_t w = 0; w < filters_[j].weights.size(); ++w) {
      const int k = filters_[j].first + static_cast<int>(w);
      const Complex z = spectrum_[k], mirrored = std::conj(spectrum_[(points - k) % points]);
      // The transforms of the real and the imaginary part, up to a factor of i.
      const Complex own = 0.5 * (second ? z - mirrored : z + mirrored);
      sum += filters_[j].weights[w] * std::norm(own);
    }
    out[j] = std::log(std::max(1.0, sum));
  }
}

void FeatureExtractor::cepstra(std::int64_t frames, float* out) {
  cepstra_.assign(static_cast<std::size_t>(frames * features), 0);
  const auto row = [&](std::int64_t t) {
    return &cepstra_[static_cast<std::size_t>(std::clamp<std::int64_t>(t, 0, frames - 1) * features)];
  };
  for (std::int64_t t = 0; t < frames; ++t)
    for (int i = 0; i < coefficients; ++i)
      for (int j = 0; j < bands; ++j)
        row(t)[i] += cosines_[i * bands + j] * log_powers_[static_cast<std::size_t>(t * bands + j)];
  for (int i = 0; i < coefficients; ++i) {
    double sum = 0;
    for (std::int64_t t = 0; t < frames; ++t) sum += row(t)[i];
    for (std::int64_t t = 0; t < frames; ++t) row(t)[i] -= sum / static_cast<double>(frames);
  }
  // Columns [to, to + count) become the differences of [from, from + count).
  const auto differences = [&](int from, int to, int count) {
    for (std::int64_t t = 0; t < frames; ++t)
      for (int i = 0; i < count; ++i)
        row(t)[to + i] = ((row(t + 1)[from + i] - row(t - 1)[from + i]) +
                          2 * (row(t + 2)[from + i] - row(t - 2)[from + i])) /
                         10;
  };
  differences(0, coefficients, coefficients);
  differences(coefficients, 2 * coefficients, second_differences);
  std::copy(cepstra_.begin(), cepstra_.end(), out);
}

}  // namespace lpsgd
