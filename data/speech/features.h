// Acoustic features: what a recogniser sees of speech instead of samples.
#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

namespace lpsgd {

enum class SpeechFeatures : std::uint8_t { filterbank, cepstral };

/// 33 features for every 10 ms of speech at 16 kHz.
///
/// Frame f is a window of 25 ms, samples [160 f, 160 f + 400). There are floor(n/160) - 2 frames in n
/// samples, as in the alignments of AN4. Each window is pre-emphasised by itself, y(i) = x(i) - 0.97 x(i-1)
/// and y(0) = 0.03 x(0), multiplied by Hamming's window 0.54 - 0.46 cos(2 pi i/399), and transformed with 512
/// points. The powers |Y(k)|^2 are weighted by 33 triangular filters. On the mel scale,
/// mel(f) = 1127 ln(1 + f/700), the 35 edges are equally spaced from 20 to 8000 Hz, and filter j rises from 0
/// at edge j to 1 at edge j + 1 and falls to 0 at edge j + 2. This is HTK's filterbank (Young et al., "The
/// HTK Book", section 5.4).
///
/// `filterbank`: feature j is ln(max(1, power of filter j)).
/// `cepstral`: 13 coefficients c(i) = sqrt(2/33) sum over j of feature j times cos(pi i (j + 1/2)/33), less
/// their means over the utterance; their 13 differences d(t) = sum over k = 1, 2 of k (c(t+k) - c(t-k))/10,
/// with the first and last frame repeated beyond the ends; and the first 7 of the differences' differences.
class FeatureExtractor {
 public:
  static constexpr std::int64_t features = 33;
  static constexpr std::int64_t shift = 160, window = 400;  // samples

  explicit FeatureExtractor(SpeechFeatures kind);
  /// The number of frames in `samples` samples; 0 if there are too few.
  static std::int64_t frames(std::int64_t samples);
  /// Writes (frames, 33) to `out`.
  void extract(std::span<const std::int16_t> samples, float* out);

 private:
  static constexpr int points = 512;
  using Complex = std::complex<double>;

  void transform();
  void log_powers(bool second, double* out) const;
  void filterbank(std::span<const std::int16_t> samples, std::int64_t frames);
  void cepstra(std::int64_t frames, float* out);

  struct Filter {
    int first = 0;                // of the powers
    std::vector<double> weights;  // of powers first, first + 1, ...
  };
  SpeechFeatures kind_;
  std::vector<double> hamming_;
  std::vector<Complex> roots_, spectrum_;
  std::vector<int> reversed_;
  std::vector<Filter> filters_;
  std::vector<double> cosines_;  // (13, 33)
  std::vector<double> log_powers_, cepstra_;
};

}  // namespace lpsgd
