#include "tests/nn/layer_fixture.h"

#include "core/philox.h"

namespace lpsgd {

LayerFixture::LayerFixture(const std::string& text, std::int64_t n, std::uint32_t seed, int threads)
    : spec(config::parse_text(text, "net.yaml")),
      network(spec, {.batch = n, .seed = seed, .threads = threads}),
      batch(n) {
  std::size_t sample = 1;
  for (const std::int64_t d : spec.input_shape()) sample *= static_cast<std::size_t>(d);
  PhiloxSequence draw(seed, RandomUse::dataset, 1);
  inputs.resize(sample * static_cast<std::size_t>(n));
  for (float& x : inputs) x = 2 * draw.uniform() - 1;
  const std::vector<std::int64_t>& scores = spec.layers().back().shape;
  const std::int64_t frames = scores.size() == 2 ? scores[0] : 1;
  for (std::int64_t i = 0; i < n * frames; ++i)
    labels.push_back(static_cast<std::int32_t>(draw.below(static_cast<std::uint32_t>(spec.classes()))));
  for (float& w : network.parameters())
    if (w != 0) w += 0.1f * (draw.uniform() - 0.5f);  // norm weights away from 1
}

double LayerFixture::loss() {
  network.forward_train(samples(), 0);
  const BatchMetrics m = network.take_metrics();
  return m.loss / static_cast<double>(m.samples);
}

}  // namespace lpsgd
