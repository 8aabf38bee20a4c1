// Work of a real GPU's streams, captured and launched.
#include <gmock/gmock.h>

#include <optional>
#include <stdexcept>

#include "core/capture.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

/// Numbers that go from index to index.
class CaptureGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    main.emplace(device);
    other.emplace(device);
    host = PinnedBuffer<int>(device, 4);
    values = DeviceBuffer<int>(device, 4);
    event.emplace(device);
    joined.emplace(device);
  }
  void move(std::size_t to, std::size_t from, StreamView stream) {
    copy_values(values.view().subspan(to, 1), values.view().subspan(from, 1), stream);
  }
  void put(int value) {
    host[0] = value;
    copy_values(values.view().first(1), host.view().first(1), *main);
    main->synchronize();
  }
  int get(std::size_t index) {
    copy_values(host.view().subspan(1, 1), values.view().subspan(index, 1), *main);
    main->synchronize();
    return host[1];
  }
  std::optional<Stream> main, other;
  PinnedBuffer<int> host;
  DeviceBuffer<int> values;
  std::optional<Event> event, joined;
};

TEST_F(CaptureGpu, IsLaunchedWithWhatMemoryHoldsThen) {
  CapturedGraph graph;
  EXPECT_FALSE(graph.is_captured());
  EXPECT_THROW(graph.launch(*main), Error);
  put(1);
  int calls = 0;
  graph.capture(*main, [&] {
    EXPECT_TRUE(is_capturing(*main));
    EXPECT_FALSE(is_capturing(*other));
    move(1, 0, *main);
    // Another stream takes part from its first wait on.
    event->record(*main);
    other->wait(*event);
    EXPECT_TRUE(is_capturing(*other));
    move(2, 1, *other);
    joined->record(*other);
    main->wait(*joined);
    move(3, 2, *main);
    ++calls;
  });
  EXPECT_FALSE(is_capturing(*main));
  EXPECT_FALSE(is_capturing(*other));
  EXPECT_TRUE(graph.is_captured());
  EXPECT_EQ(get(3), 0) << "what is captured has run";
  for (const int value : {5, 6, 7}) {
    put(value);
    graph.launch(*main);
    EXPECT_EQ(get(3), value);
  }
  CapturedGraph moved = std::move(graph);
  EXPECT_FALSE(graph.is_captured());  // NOLINT(bugprone-use-after-move)
  put(8);
  moved.launch(*main);
  EXPECT_EQ(get(3), 8);
  EXPECT_EQ(calls, 1);
}

TEST_F(CaptureGpu, TimedEventsTellOfTheLaunch) {
  Event begin(device, Event::Timing::on), end(device, Event::Timing::on), done(device);
  CapturedGraph graph;
  graph.capture(*main, [&] {
    begin.record(*main);
    move(1, 0, *main);
    end.record(*main);
  });
  for (int run = 0; run < 3; ++run) {
    graph.launch(*main);
    done.record(*main);
    done.synchronize();
    EXPECT_GE(seconds_between(begin, end), 0);
    EXPECT_LT(seconds_between(begin, end), 10);
  }
}

TEST_F(CaptureGpu, WhatCannotBeCapturedIsRefusedAndHasNotRun) {
  put(3);
  CapturedGraph graph;
  // A stream that nobody waits for in the end.
  EXPECT_THROW(graph.capture(*main,
                             [&] {
                               event->record(*main);
                               other->wait(*event);
                               move(2, 0, *other);
                             }),
               DeviceError);
  EXPECT_FALSE(graph.is_captured());
  // Work that waits for what is not in the graph.
  EXPECT_THROW(graph.capture(*main,
                             [&] {
                               move(2, 0, *main);
                               joined->record(*other);
                               main->wait(*joined);
                             }),
               DeviceError);
  EXPECT_THROW(graph.capture(*main, [&] { main->synchronize(); }), DeviceError);
  EXPECT_THROW(graph.capture(*main,
                             [&] {
                               move(2, 0, *main);
                               throw std::runtime_error("of the work's own");
                             }),
               std::runtime_error);
  EXPECT_FALSE(is_capturing(*main));
  EXPECT_FALSE(is_capturing(*other));
  EXPECT_EQ(get(2), 0);
  // The streams go on as before.
  graph.capture(*main, [&] { move(2, 0, *main); });
  graph.launch(*main);
  EXPECT_EQ(get(2), 3);
  EXPECT_THROW(graph.capture(StreamView(), [] {}), Error);
}

}  // namespace
}  // namespace lpsgd
