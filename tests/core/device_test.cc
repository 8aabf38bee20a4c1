// Devices on any machine: the CPU's streams, events and memory, and what is said where there is no GPU.
#include "core/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace lpsgd {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const DeviceError& e) {
    EXPECT_EQ(e.exit_status(), 1);
    return e.what();
  }
  return "no DeviceError";
}

TEST(Device, Text) {
  EXPECT_EQ(Device::cpu().text(), "cpu");
  EXPECT_EQ(Device::cuda(3).text(), "cuda:3");
  EXPECT_EQ(Device(), Device::cpu());
  EXPECT_NE(Device::cuda(0), Device::cpu());
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
}

TEST(Device, DiscoverySaysWhyThereIsNone) {
  const CudaDevices& found = cuda_devices();
  EXPECT_EQ(found.count == 0, !found.reason.empty()) << found.reason;
  EXPECT_EQ(&found, &cuda_devices());
}

TEST(Device, WhatIsNotThereIsRefused) {
  const int beyond = cuda_devices().count;
  const std::string name = Device::cuda(beyond).text();
  const std::string why = beyond == 0 ? cuda_devices().reason : "this machine has";
  const auto refused = [&](const std::function<void()>& body) {
    EXPECT_THAT(message_of(body), HasSubstr(name + " cannot be used: " + why));
  };
  refused([&] { Stream stream(Device::cuda(beyond)); });
  refused([&] { Event event(Device::cuda(beyond)); });
  refused([&] { DeviceBuffer<float> buffer(Device::cuda(beyond), 4); });
  refused([&] { PinnedBuffer<float> buffer(Device::cuda(beyond), 4); });
  refused([&] { ScopedDevice scope(Device::cuda(beyond)); });
  refused([&] { cuda_device_info(beyond); });
  EXPECT_THAT(message_of([] { Stream stream(Device::cuda(-1)); }), HasSubstr("cuda:-1 cannot be used"));
}

TEST(Device, CpuMemoryIsZeroedAndAligned) {
  DeviceBuffer<double> buffer(Device::cpu(), 1001);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_TRUE(std::ranges::all_of(buffer.view(), [](double x) { return x == 0; }));
  EXPECT_TRUE(DeviceBuffer<double>().view().empty());
  EXPECT_TRUE(DeviceBuffer<double>(Device::cpu(), 0).view().empty());
}

TEST(Device, CpuBuffersMove) {
  DeviceBuffer<int> first(Device::cpu(), 3), second(Device::cpu(), 5);
  first.data()[2] = 7;
  const int* data = first.data();
  DeviceBuffer<int> third = std::move(first);
  EXPECT_EQ(third.data(), data);
  second = std::move(third);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 3u);
  EXPECT_EQ(second.data()[2], 7);
}

TEST(Device, CpuCopies) {
  const Stream stream(Device::cpu());
  PinnedBuffer<int> in(Device::cpu(), 100), out(Device::cpu(), 100);
  DeviceBuffer<int> between(Device::cpu(), 100);
  std::iota(in.data(), in.data() + in.size(), 1);
  copy_values(between.view(), in.view(), stream);
  copy_values(out.view(), between.view(), stream);
  stream.synchronize();
  EXPECT_TRUE(std::ranges::equal(in.view(), out.view()));
  zero_bytes(between.data(), between.view().size_bytes(), stream);
  EXPECT_TRUE(std::ranges::all_of(between.view(), [](int x) { return x == 0; }));
  EXPECT_THROW(copy_values(between.view().first(3), in.view(), stream), Error);
}

TEST(Device, CpuEvents) {
  const Stream stream(Device::cpu());
  Event begin(Device::cpu(), Event::Timing::on), end(Device::cpu(), Event::Timing::on);
  EXPECT_TRUE(begin.done());
  begin.record(stream);
  end.record(stream);
  stream.wait(end);
  end.synchronize();
  EXPECT_GE(seconds_between(begin, end), 0);
  EXPECT_LE(seconds_between(end, begin), 0);
  EXPECT_THROW(begin.record(StreamView(Device::cuda(0), nullptr)), Error);
}

}  // namespace
}  // namespace lpsgd
