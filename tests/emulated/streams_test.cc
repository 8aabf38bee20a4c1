// The emulated GPU must reveal missing synchronisation: in every round with work as late as possible, and in
// some rounds with random delays (LPSGD_EMULATED_ORDER).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

class EmulatedStreams : public GpuTest {
 protected:
  static constexpr int rounds = 300;
  const bool random = std::getenv("LPSGD_EMULATED_ORDER") != nullptr;
  const Stream first{device}, second{device};
  PinnedBuffer<int> in{device, 1}, out{device, 1};
  DeviceBuffer<int> value{device, 1};
  const Event event{device};

  /// In how many rounds `body(round)` reads something else than the round's number.
  template <class Body>
  int wrong(const Body& body) {
    int count = 0;
    for (int round = 1; round <= rounds; ++round) {
      in.data()[0] = round;
      count += body() != round;
      first.synchronize();
      second.synchronize();
    }
    return count;
  }
  void expect_found(int wrong_rounds) const {
    EXPECT_GT(wrong_rounds, random ? rounds / 50 : rounds - 1);
    EXPECT_LT(wrong_rounds, random ? rounds - rounds / 50 : rounds + 1);
  }
};

TEST_F(EmulatedStreams, FindsAReadThatDoesNotWait) {
  expect_found(wrong([&] {
    copy_values(value.view(), in.view(), first);
    copy_values(out.view(), value.view(), second);
    second.synchronize();
    return out.data()[0];
  }));
}

TEST_F(EmulatedStreams, FindsAWriteThatDoesNotWait) {
  expect_found(wrong([&] {
    copy_values(value.view(), in.view(), first);
    first.synchronize();
    copy_values(out.view(), value.view(), first);
    zero_bytes(value.data(), sizeof(int), second);
    second.synchronize();
    first.synchronize();
    return out.data()[0];
  }));
}

TEST_F(EmulatedStreams, FindsAHostThatDoesNotWait) {
  expect_found(wrong([&] {
    copy_values(value.view(), in.view(), first);
    copy_values(out.view(), value.view(), first);
    return out.data()[0];
  }));
}

TEST_F(EmulatedStreams, FindsAHostThatOverwritesWhatIsCopied) {
  expect_found(wrong([&] {
    copy_values(value.view(), in.view(), first);
    copy_values(out.view(), value.view(), first);
    in.data()[0] = 0;
    first.synchronize();
    return out.data()[0];
  }));
}

TEST_F(EmulatedStreams, KeepsTheOrderThatEventsGive) {
  Event written(device), read(device);
  EXPECT_EQ(wrong([&] {
              second.wait(read);
              copy_values(value.view(), in.view(), second);
              written.record(second);
              first.wait(written);
              copy_values(out.view(), value.view(), first);
              read.record(first);
              second.wait(read);
              zero_bytes(value.data(), sizeof(int), second);
              while (!read.done()) continue;  // only queries advance the work
              return out.data()[0];
            }),
            0);
}

TEST_F(EmulatedStreams, WorkIsPendingUntilItsDelayIsOver) {
  Event written(device);
  int pending = 0;
  for (int round = 0; round < rounds; ++round) {
    copy_values(value.view(), in.view(), first);
    written.record(first);
    while (!written.done()) ++pending;
  }
  EXPECT_GE(pending, random ? rounds / 10 : rounds);
}

using EmulatedStreamsDeathTest = EmulatedStreams;

TEST_F(EmulatedStreamsDeathTest, TheHostCannotAccessDeviceMemory) {
  EXPECT_DEATH(
      {
        volatile int* const device_memory = value.data();
        in.data()[0] = *device_memory;
      },
      "");
}

}  // namespace
}  // namespace lpsgd
