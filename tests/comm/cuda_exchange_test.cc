// The exchange of gradients on a CUDA device over threads, staged through the host or passed as device
// memory: the same bytes as the CPU's. Ranks over NCCL: cuda_mpi_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "comm/transport_over.h"
#include "core/error.h"
#include "tests/comm/cuda_arena.h"
#include "tests/comm/message_coder_cases.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

using exchange_cases::MakeArena;

/// Over threads, like an MPI that takes device memory: it copies messages from and to the device on its own
/// stream, which waits for no other.
class TakesDeviceMemory final : public TransportOver {
 public:
  TakesDeviceMemory(Transport& inner, Device device) : TransportOver(inner), stream_(device) {}
  bool takes_device_memory() const override { return true; }
  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    count_message(bytes.size());
    Message message = download(bytes);
    const std::span<const std::byte> host = message.host;
    return add(inner_.isend(host, to, tag), std::move(message));
  }
  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    Message message{std::vector<std::byte>(bytes.size()), bytes};
    const std::span<std::byte> host = message.host;
    return add(inner_.irecv(host, from, tag), std::move(message));
  }
  Request iallreduce(std::span<float> values) override {
    bytes_sent_ += ring_share(values.size_bytes());
    Message message = download(std::as_bytes(values));
    message.to = std::as_writable_bytes(values);
    const std::span host(reinterpret_cast<float*>(message.host.data()), values.size());
    return add(inner_.iallreduce(host), std::move(message));
  }
  bool test(Request request) override {
    if (!inner_.test(request)) return false;
    const Message message = std::move(messages_.extract(request).mapped());
    copy_bytes(message.to.data(), message.host.data(), message.to.size(), stream_);
    stream_.synchronize();
    return true;
  }

 private:
  struct Message {
    std::vector<std::byte> host;
    std::span<std::byte> to;  // empty for a send
  };
  Message download(std::span<const std::byte> bytes) {
    Message message{std::vector<std::byte>(bytes.size()), {}};
    copy_bytes(message.host.data(), bytes.data(), bytes.size(), stream_);
    stream_.synchronize();
    return message;
  }
  Request add(Request request, Message message) {
    messages_.insert_or_assign(request, std::move(message));
    return request;
  }
  const Stream stream_;
  std::map<Request, Message> messages_;
};

/// How messages of the device's gradients travel.
enum class Path { staged, pointers };

class CudaExchange : public GpuTest, public testing::WithParamInterface<std::tuple<int, Path>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  void run(const std::function<void(Transport&, const MakeArena&)>& body) {
    run_thread_ranks(ranks(), [&](Transport& inner) {
      const MakeArena arenas = [&](std::size_t size) { return std::make_unique<CudaArena>(device, size); };
      if (std::get<1>(GetParam()) == Path::staged) return body(inner, arenas);
      TakesDeviceMemory pointers(inner, device);
      body(pointers, arenas);
    });
  }
};
std::string name_of(const testing::TestParamInfo<std::tuple<int, Path>>& p) {
  const auto [ranks, path] = p.param;
  return (path == Path::staged ? "Staged" : "Pointers") + std::to_string(ranks);
}
INSTANTIATE_TEST_SUITE_P(, CudaExchange,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(Path::staged, Path::pointers)),
                         name_of);

TEST_P(CudaExchange, EqualsTheReferenceHoweverItIsCut) {
  for (const char* codec : {"mixed", "optimal_feedback", "onebit_column", "topk_tensor"}) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {ranks()}, 3);
    run([&](Transport& t, const MakeArena& a) { exchange_cases::equals_reference(t, setup, expected, a); });
  }
}

/// Three ranks, which queue all kinds of work: a rank's own, contributions, others' means.
class CudaExchangeOfThree : public CudaExchange {};
INSTANTIATE_TEST_SUITE_P(, CudaExchangeOfThree,
                         testing::Combine(testing::Values(3), testing::Values(Path::staged, Path::pointers)),
                         name_of);

TEST_P(CudaExchangeOfThree, EqualsTheReferenceWithEveryCodec) {
  for (const NamedCodec& codec : tested_codecs()) {
    const ExchangeSetup setup = make_setup(codec.name);
    const auto expected = reference_means(setup, {ranks()}, 3);
    const ExchangeOptions options = exchange_cases::all_options(setup)[1];  // cuts and packs
    run([&](Transport& t, const MakeArena& a) {
      exchange_cases::equals_reference(t, setup, expected, options, a);
    });
  }
}

TEST_P(CudaExchange, NoneIsTheMean) {
  for (const Collective collective : {Collective::reduce_broadcast, Collective::allreduce})
    run([&](Transport& t, const MakeArena& a) { exchange_cases::none_is_the_mean(t, collective, a); });
}

TEST_P(CudaExchange, ResidualsContinue) {
  run([&](Transport& t, const MakeArena& a) { exchange_cases::residuals_continue(t, "mixed", a); });
}

TEST_P(CudaExchange, PartsAreTheWhole) {
  run([&](Transport& t, const MakeArena& a) {
    exchange_cases::parts_are_the_whole(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::parts_are_the_whole(t, "none", Collective::allreduce, a);
  });
}

TEST_P(CudaExchange, NonFiniteIsNamed) {
  run([&](Transport& t, const MakeArena& a) {
    exchange_cases::non_finite_is_named(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "majority", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "none", Collective::reduce_broadcast, a);
    exchange_cases::non_finite_is_named(t, "none", Collective::allreduce, a);
    exchange_cases::non_finite_is_named(t, "qsgd4", Collective::simulated, a);
  });
}

TEST_P(CudaExchange, BytesAreThoseAnnounced) {
  run([&](Transport& t, const MakeArena& a) {
    exchange_cases::bytes_are_those_announced(t, "mixed", Collective::reduce_broadcast, a);
    exchange_cases::bytes_are_those_announced(t, "mixed", Collective::simulated, a);
    exchange_cases::bytes_are_those_announced(t, "none", Collective::allreduce, a);
  });
}

TEST_P(CudaExchange, SimulatedDecodesItsOwn) {
  run([&](Transport& t, const MakeArena& a) { exchange_cases::simulated_decodes_its_own(t, "mixed", a); });
}

TEST_P(CudaExchange, ErrorsAreMeasured) {
  run([&](Transport& t, const MakeArena& a) { exchange_cases::errors_are_measured(t, "mixed", a); });
}

/// Ranks in blocks of two.
class CudaExchangeOfBlocks : public CudaExchange {
 protected:
  const exchange_cases::Way way{Collective::hierarchical, 2};
};
INSTANTIATE_TEST_SUITE_P(, CudaExchangeOfBlocks,
                         testing::Combine(testing::Values(2, 4),
                                          testing::Values(Path::staged, Path::pointers)),
                         name_of);

TEST_P(CudaExchangeOfBlocks, EqualsTheReferenceHoweverItIsCut) {
  for (const char* codec : {"mixed", "none", "onebit_column", "optimal_feedback"}) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {ranks(), way.ranks_per_block}, 3);
    run([&](Transport& t, const MakeArena& a) {
      exchange_cases::equals_reference(t, setup, expected, a, way);
    });
  }
}

TEST_P(CudaExchangeOfBlocks, ResidualsNanAndBytes) {
  run([&](Transport& t, const MakeArena& a) {
    exchange_cases::residuals_continue(t, "mixed", a, way);
    exchange_cases::parts_are_the_whole(t, "mixed", way, a);
    for (const char* codec : {"mixed", "majority", "none"})
      exchange_cases::non_finite_is_named(t, codec, way, a);
    exchange_cases::bytes_are_those_announced(t, "mixed", way, a);
    exchange_cases::errors_are_measured(t, "mixed", a, way);
  });
}

class CudaMessageCoder : public GpuTest, public testing::WithParamInterface<int> {
 protected:
  void run(const std::function<void(Transport&)>& body) { run_thread_ranks(GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaMessageCoder, testing::Values(1, 2, 3));

TEST_P(CudaMessageCoder, EqualsTheReferenceWhateverTheBuckets) {
  for (const char* codec : {"mixed", "onebit_column", "optimal_feedback", "topk_tensor"}) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {GetParam()}, 3);
    run([&](Transport& t) { message_coder_cases::equals_reference(t, setup, expected, device); });
  }
}

TEST_P(CudaMessageCoder, ResidualsContinue) {
  run([&](Transport& t) { message_coder_cases::residuals_continue(t, "mixed", device); });
}

TEST_P(CudaMessageCoder, GoesOnAfterANan) {
  for (const char* codec : {"none", "onebit_column", "qsgd4_l2_feedback", "majority"})
    run([&](Transport& t) { message_coder_cases::goes_on_after_a_nan(t, codec, device); });
}

TEST_P(CudaMessageCoder, BytesAreThoseAnnounced) {
  run([&](Transport& t) { message_coder_cases::bytes_are_those_announced(t, "mixed", device); });
}

class CudaExchangeOptions : public GpuTest {};

TEST_F(CudaExchangeOptions, DevicePointersNeedATransportThatTakesThem) {
  run_thread_ranks(1, [&](Transport& t) {
    const ExchangeSetup setup = make_setup("none");
    CudaArena arena(device, setup.arena);
    ExchangeOptions options = arena.adapt({});
    options.device_pointers = true;
    try {
      Exchange(t, setup.tensors, setup.codecs, arena.values(), setup.order, options);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "exchange.device_pointers: the transport threads does not take device memory; "
                   "allowed: auto, false");
      EXPECT_EQ(error.exit_status(), 2);
    }
  });
}

}  // namespace
}  // namespace lpsgd
