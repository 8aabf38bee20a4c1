// Packs of gradients that lie on a GPU and travel through the host's memory.
#include <gtest/gtest.h>

#include <optional>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "core/config.h"
#include "core/philox.h"
#include "nn/network_spec.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

/// Two ranks exchange the gradients of ResNet-20, twice.
class StagedPacksGpu : public GpuTest {
 protected:
  struct Outcome {
    std::size_t milestones = 0;
    std::uint64_t bytes = 0, messages = 0;  // of a step, all ranks
    std::vector<float> means;
  };

  Outcome exchange(const char* codec, std::optional<std::int64_t> pack_bytes, Device on) {
    const NetworkSpec spec(config::parse_file(LPSGD_SOURCE_DIR "/configs/networks/resnet20.yaml"));
    std::vector<TensorInfo> tensors = spec.tensors();
    std::size_t values = 0;
    std::vector<std::size_t> order;
    for (TensorInfo& tensor : tensors) {
      tensor.offset = static_cast<std::int64_t>(values);
      values += static_cast<std::size_t>(tensor.elements + 15) / 16 * 16;
      order.insert(order.begin(), order.size());
    }
    const CodecSpec kind = parse_codec(config::parse_text(codec, "codec"), "codec");
    Outcome out;
    run_thread_ranks(2, [&](Transport& transport) {
      const Stream stream(on);
      DeviceBuffer<float> gradients(on, values);
      ExchangeOptions options;
      options.pack_bytes = pack_bytes;
      options.device = on;
      options.compute = stream;
      Exchange exchange(transport, tensors, std::vector<CodecSpec>(tensors.size(), kind), gradients.view(),
                        order, options);
      std::vector<float> host(values);
      for (std::uint32_t step = 0; step < 2; ++step) {
        PhiloxSequence draw(step, RandomUse::dataset, static_cast<std::uint32_t>(transport.rank()));
        for (float& value : host) value = draw.uniform() - 0.5f;
        copy_values(gradients.view(), host, stream);
        exchange.begin(step);
        for (const std::size_t tensor : order) exchange.submit(tensor);
        exchange.finish();
      }
      copy_values(std::span(host), gradients.view(), stream);
      stream.synchronize();
      const auto sum = [&](std::uint64_t mine) {
        const auto all = transport.all_gather(mine);
        return (all[0] + all[1]) / 2;
      };
      const std::uint64_t bytes = sum(transport.bytes_sent()), messages = sum(transport.messages_sent());
      if (transport.rank() == 0) out = {exchange.milestones().size(), bytes, messages, host};
    });
    return out;
  }
};

TEST_F(StagedPacksGpu, ResNet20IsOnePack) {
  for (const char* codec : {"{kind: qsgd, bits: 4, bucket: 512, error_feedback: true}", "onebit", "none"}) {
    const Outcome one = exchange(codec, {}, device), several = exchange(codec, 1 << 18, device),
                  cpu = exchange(codec, {}, Device::cpu());
    EXPECT_EQ(one.milestones, 1u);
    EXPECT_EQ(one.messages, 4u);  // from each rank to the other one, in both rounds
    EXPECT_GT(several.milestones, 1u);
    EXPECT_EQ(cpu.milestones, several.milestones);
    EXPECT_EQ(cpu.messages, several.messages);
    for (const Outcome* other : {&several, &cpu}) {
      EXPECT_EQ(one.bytes, other->bytes);
      EXPECT_EQ(one.means, other->means);
    }
  }
}

}  // namespace
}  // namespace lpsgd
