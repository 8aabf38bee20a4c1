// Streams, events and memory of a real GPU.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "core/clock.h"
#include "core/cuda/check.h"
#include "core/file.h"
#include "core/stream_trace.h"
#include "tests/core/gpu_test.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using ::testing::HasSubstr;

// Needs no GPU: the message of a failed call.
TEST(CudaCheck, NamesTheErrorAndTheCallSite) {
  EXPECT_NO_THROW(check(cudaSuccess));
  const int line = __LINE__ + 2;
  try {
    check(cudaErrorInvalidValue);
    FAIL() << "no DeviceError";
  } catch (const DeviceError& e) {
    EXPECT_THAT(e.what(), HasSubstr("CUDA: invalid argument (cudaErrorInvalidValue) at "));
    EXPECT_THAT(e.what(), HasSubstr("tests/core/device_gpu_test.cc:" + std::to_string(line)));
    EXPECT_EQ(static_cast<int>(e.where().line()), line);
  }
}

using DeviceGpu = GpuTest;

TEST_F(DeviceGpu, Info) {
  const CudaDeviceInfo info = cuda_device_info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.major, 5);
  EXPECT_GT(info.memory, 0u);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_NE(info.bus.find(':'), std::string::npos) << info.bus;
  if (cuda_devices().count > 1) {
    EXPECT_NE(info.bus, cuda_device_info(1).bus);
  }
}

TEST_F(DeviceGpu, MemoryIsCounted) {
  const std::size_t before = device_memory_use(device).current;
  reset_device_memory_peak(device);
  {
    DeviceBuffer<float> a(device, 1000), b(device, 2000);
    const PinnedBuffer<float> host(device, 5000);
    EXPECT_EQ(device_memory_use(device).current, before + 12000);
    a = DeviceBuffer<float>(device, 10);  // beside the old one, which goes then
    EXPECT_EQ(device_memory_use(device).current, before + 8040);
    const DeviceBuffer<float> moved = std::move(b);
    EXPECT_EQ(device_memory_use(device).current, before + 8040);
  }
  EXPECT_EQ(device_memory_use(device).current, before);
  EXPECT_EQ(device_memory_use(device).peak, before + 12040);
  reset_device_memory_peak(device);
  EXPECT_EQ(device_memory_use(device).peak, before);
}

TEST_F(DeviceGpu, CopiesThereAndBack) {
  const Stream stream(device, StreamPriority::high);
  const std::size_t n = 1000003;
  PinnedBuffer<int> in(device, n), out(device, n);
  DeviceBuffer<int> first(device, n), second(device, n);
  std::iota(in.data(), in.data() + n, 1);
  copy_values(out.view(), first.view(), stream);
  stream.synchronize();
  EXPECT_TRUE(std::ranges::all_of(out.view(), [](int x) { return x == 0; }));
  copy_values(first.view(), in.view(), stream);
  copy_values(second.view(), first.view(), stream);
  copy_values(out.view(), second.view(), stream);
  stream.synchronize();
  EXPECT_TRUE(std::ranges::equal(in.view(), out.view()));
  zero_bytes(second.data(), second.view().size_bytes(), stream);
  copy_values(out.view(), second.view(), stream);
  stream.synchronize();
  EXPECT_TRUE(std::ranges::all_of(out.view(), [](int x) { return x == 0; }));
}

// A copy on one stream waits for the event of another; the host waits for neither until the end.
TEST_F(DeviceGpu, EventsOrderStreams) {
  const Stream producer(device), consumer(device);
  Event begin(device, Event::Timing::on), ready(device, Event::Timing::on);
  const std::size_t n = std::size_t{1} << 24;
  PinnedBuffer<int> in(device, n), out(device, n);
  DeviceBuffer<int> buffer(device, n);
  std::iota(in.data(), in.data() + n, 1);
  begin.record(producer);
  copy_values(buffer.view(), in.view(), producer);
  ready.record(producer);
  consumer.wait(ready);
  copy_values(out.view(), buffer.view(), consumer);
  consumer.synchronize();
  EXPECT_TRUE(ready.done());
  EXPECT_GT(seconds_between(begin, ready), 0);
  EXPECT_TRUE(std::ranges::equal(in.view(), out.view()));
}

TEST_F(DeviceGpu, TooMuchMemoryIsRefusedAndForgotten) {
  try {
    DeviceBuffer<char> buffer(device, std::size_t{1} << 60);
    FAIL() << "no DeviceError";
  } catch (const DeviceError& e) {
    EXPECT_THAT(e.what(), HasSubstr("cuda:0: no room for 1152921504606846976 bytes of device memory"));
  }
  EXPECT_NO_THROW(check(cudaGetLastError()));
}

TEST_F(DeviceGpu, AStreamsWorkIsTraced) {
  Trace trace;
  const double begin = now_seconds();
  const Stream stream(device);
  StreamTrace spans(trace, stream, "GPU: a stream");
  StreamTrace more(trace, stream, "GPU: the same");
  const Trace::Label copies = spans.label("copies"), updates = more.label("updates");
  PinnedBuffer<int> host(device, 1 << 20);
  DeviceBuffer<int> there(device, 1 << 20);
  for (int i = 0; i < 40; ++i) {
    spans.span(
        copies, [&] { copy_values(there.view(), host.view(), stream); }, i);
    more.span(updates, [&] { zero_bytes(there.data(), there.view().size_bytes(), stream); });
  }
  const TestFolder folder;
  const std::string path = folder.path() + "/trace.json";
  trace.write(path, 0, 1);
  const double end = now_seconds();
  const auto events = nlohmann::json::parse(read_file(path))["traceEvents"];
  std::map<std::string, std::vector<double>> starts;
  double sum = 0;
  for (const auto& event : events) {
    if (event["ph"] != "X") continue;
    starts[event["name"]].push_back(event["ts"].get<double>() * 1e-6);
    sum += event["dur"].get<double>() * 1e-6;
  }
  for (const char* name : {"copies", "updates"}) {
    ASSERT_EQ(starts[name].size(), 40u);
    EXPECT_TRUE(std::ranges::is_sorted(starts[name]));
    EXPECT_GE(starts[name].front(), begin - 0.1);  // the clocks agree as well as the host is not interrupted
    EXPECT_LE(starts[name].back(), end + 0.1);
  }
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, end - begin);
}

}  // namespace
}  // namespace lpsgd
