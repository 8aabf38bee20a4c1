// The exchange of a device's gradients, on a device made of threads: the order of its queues, staging and
// cutting must not change a bit, however late each piece of work comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport_over.h"
#include "core/error.h"
#include "tests/comm/exchange_cases.h"
#include "tests/comm/fake_device.h"

namespace lpsgd {
namespace {

using exchange_cases::Arena;
using exchange_cases::MakeArena;

class FakeArena final : public Arena {
 public:
  FakeArena(FakeDevice& device, std::size_t size)
      : device_(device),
        values_(reinterpret_cast<float*>(device.device_memory(size * sizeof(float))), size) {}
  std::span<float> values() override { return values_; }
  ExchangeOptions adapt(ExchangeOptions options) override {
    options.coding_device = &device_;
    return options;
  }
  void write(const float* values, std::int64_t first, std::int64_t n) override {
    device_.run(CodingDevice::Queue::compute,
                [to = values_.data() + first, own = std::vector(values, values + n)] {
                  std::copy(own.begin(), own.end(), to);
                });
  }
  std::vector<float> read() override {
    device_.drain(CodingDevice::Queue::compute);
    return {values_.begin(), values_.end()};
  }

 private:
  FakeDevice& device_;
  const std::span<float> values_;
};

/// How messages of the device's gradients travel.
enum class Path { staged, pointers, ordered };

/// Over threads, whose messages may lie anywhere.
class TakesDeviceMemory final : public TransportOver {
 public:
  explicit TakesDeviceMemory(Transport& inner) : TransportOver(inner) {}
  bool takes_device_memory() const override { return true; }
  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    count_message(bytes.size());
    return inner_.isend(bytes, to, tag);
  }
  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    return inner_.irecv(bytes, from, tag);
  }
  Request iallreduce(std::span<float> values) override {
    bytes_sent_ += ring_share(values.size_bytes());
    return inner_.iallreduce(values);
  }
  bool test(Request request) override { return inner_.test(request); }
};

class DeviceExchange : public testing::TestWithParam<std::tuple<int, Path>> {
 protected:
  /// Runs `body(transport, arenas)` on each rank, which has a device of its own.
  void run(const std::function<void(Transport&, const MakeArena&)>& body) {
    run_thread_ranks(std::get<0>(GetParam()), [&](Transport& inner) {
      FakeDevice device(static_cast<std::uint32_t>(7 + inner.rank()));
      const MakeArena arenas = [&](std::size_t size) { return std::make_unique<FakeArena>(device, size); };
      TakesDeviceMemory pointers(inner);
      const auto ordered = make_ordered_transport(inner, device);
      switch (std::get<1>(GetParam())) {
        case Path::staged:
          return body(inner, arenas);
        case Path::pointers:
          return body(pointers, arenas);
        case Path::ordered:
          return body(*ordered, arenas);
      }
    });
  }
  int ranks() const { return std::get<0>(GetParam()); }
};
std::string name_of(const testing::TestParamInfo<std::tuple<int, Path>>& p) {
  const auto [ranks, path] = p.param;
  return (path == Path::staged     ? "Staged"
          : path == Path::pointers ? "Pointers"
                                   : "Ordered") +
         std::to_string(ranks);
}
INSTANTIATE_TEST_SUITE_P(, DeviceExchange,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(Path::staged, Path::pointers, Path::ordered)),
                         name_of);

TEST_P(DeviceExchange, EqualsTheReferenceHoweverItIsCut) {
  for (const char* codec :
       {"mixed", "none", "onebit_column", "qsgd4_l2_feedback", "optimal_feedback", "topk"}) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, ranks(), 3);
    run([&](Transport& t, const MakeArena& a) { exchange_cases::equals_reference(t, setup, expected, a); });
  }
}

TEST_P(DeviceExchange, NoneIsTheMean) {
  for (const Collective collective : {Collective::reduce_broadcast, Collective::allreduce})
    run([&](Transport& t, const MakeArena& a) { exchange_cases::none_is_the_mean(t, collective, a); });
}

TEST_P(DeviceExchange, ResidualsContinue) {
  run([&](Transport& t, const MakeArena& a) { exchange_cases::residuals_continue(t, "mixed", a); });
}

TEST_P(DeviceExchange, NonFiniteIsNamed) {
  run([&](Transport& t, const MakeArena& a) {
    exchange_cases::non_finite_is_named(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "majority", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "none", Collective::allreduce, a);
    exchange_cases::non_finite_is_named(t, "qsgd4", Collective::simulated, a);
  });
}

TEST_P(DeviceExchange, BytesAreThoseAnnounced) {
  run([&](Transport& t, const MakeArena& a) {
    exchange_cases::bytes_are_those_announced(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::bytes_are_those_announced(t, "mixed", Collective::simulated, a);
    exchange_cases::bytes_are_those_announced(t, "none", Collective::allreduce, a);
  });
}

TEST_P(DeviceExchange, SimulatedDecodesItsOwn) {
  run([&](Transport& t, const MakeArena& a) { exchange_cases::simulated_decodes_its_own(t, "mixed", a); });
}

TEST_P(DeviceExchange, ErrorsAreMeasured) {
  run([&](Transport& t, const MakeArena& a) { exchange_cases::errors_are_measured(t, "mixed", a); });
}

TEST(DeviceExchangeOptions, RanksWithOtherCodecsFail) {
  EXPECT_THROW(run_thread_ranks(2,
                                [](Transport& inner) {
                                  FakeDevice device(0);
                                  const auto ordered = make_ordered_transport(inner, device);
                                  const ExchangeSetup setup =
                                      make_setup(inner.rank() == 1 ? "qsgd4" : "qsgd8");
                                  exchange_cases::run(*ordered, setup, {}, 1, [&](std::size_t size) {
                                    return std::make_unique<FakeArena>(device, size);
                                  });
                                }),
               CommError);
}

TEST(DeviceExchangeOptions, UnsupportedOptionsAreRefused) {
  run_thread_ranks(1, [](Transport& t) {
    FakeDevice device(0);
    const ExchangeSetup setup = make_setup("none");
    ExchangeOptions options = FakeArena(device, 1).adapt({});
    std::vector<float> arena(setup.arena);
    const auto refused = [&](Transport& transport, const ExchangeOptions& o) -> std::string {
      try {
        Exchange(transport, setup.tensors, setup.codecs, arena, setup.order, o);
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "";
    };
    options.device_pointers = true;
    EXPECT_EQ(
        refused(t, options),
        "exchange.device_pointers: the transport threads does not take device memory; allowed: auto, false");
    options.device_pointers = false;
    const auto ordered = make_ordered_transport(t, device);
    EXPECT_EQ(
        refused(*ordered, options),
        "exchange.device_pointers: the transport ordered takes device memory alone; allowed: auto, true");
    EXPECT_EQ(refused(*ordered, {}),
              "exchange.transport: ordered moves device memory alone, but gradients are on the CPU; use mpi");
  });
}

}  // namespace
}  // namespace lpsgd
