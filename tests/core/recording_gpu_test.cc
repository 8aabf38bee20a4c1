// Work of a real GPU's streams, recorded and replayed.
#include <gmock/gmock.h>

#include <optional>
#include <stdexcept>

#include "core/recording.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

/// Numbers that go from place to place.
class RecordingGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    main.emplace(device);
    other.emplace(device);
    host = PinnedBuffer<int>(device, 4);
    places = DeviceBuffer<int>(device, 4);
    event.emplace(device);
    joined.emplace(device);
  }
  void move(std::size_t to, std::size_t from, StreamView stream) {
    copy_values(places.view().subspan(to, 1), places.view().subspan(from, 1), stream);
  }
  void put(int value) {
    host[0] = value;
    copy_values(places.view().first(1), host.view().first(1), *main);
    main->synchronize();
  }
  int get(std::size_t place) {
    copy_values(host.view().subspan(1, 1), places.view().subspan(place, 1), *main);
    main->synchronize();
    return host[1];
  }
  std::optional<Stream> main, other;
  PinnedBuffer<int> host;
  DeviceBuffer<int> places;
  std::optional<Event> event, joined;
};

TEST_F(RecordingGpu, IsReplayedWithWhatMemoryHoldsThen) {
  Recording recording;
  EXPECT_FALSE(recording.is_recorded());
  EXPECT_THROW(recording.replay(*main), Error);
  put(1);
  int calls = 0;
  recording.record(*main, [&] {
    EXPECT_TRUE(is_being_recorded(*main));
    EXPECT_FALSE(is_being_recorded(*other));
    move(1, 0, *main);
    // Another stream takes part from its first wait on.
    event->record(*main);
    other->wait(*event);
    EXPECT_TRUE(is_being_recorded(*other));
    move(2, 1, *other);
    joined->record(*other);
    main->wait(*joined);
    move(3, 2, *main);
    ++calls;
  });
  EXPECT_FALSE(is_being_recorded(*main));
  EXPECT_FALSE(is_being_recorded(*other));
  EXPECT_TRUE(recording.is_recorded());
  EXPECT_EQ(get(3), 0) << "what is recorded has run";
  for (const int value : {5, 6, 7}) {
    put(value);
    recording.replay(*main);
    EXPECT_EQ(get(3), value);
  }
  Recording moved = std::move(recording);
  EXPECT_FALSE(recording.is_recorded());  // NOLINT(bugprone-use-after-move)
  put(8);
  moved.replay(*main);
  EXPECT_EQ(get(3), 8);
  EXPECT_EQ(calls, 1);
}

TEST_F(RecordingGpu, TimedEventsTellOfTheReplay) {
  Event begin(device, Event::Timing::on), end(device, Event::Timing::on), done(device);
  Recording recording;
  recording.record(*main, [&] {
    begin.record(*main);
    move(1, 0, *main);
    end.record(*main);
  });
  for (int run = 0; run < 3; ++run) {
    recording.replay(*main);
    done.record(*main);
    done.synchronize();
    EXPECT_GE(seconds_between(begin, end), 0);
    EXPECT_LT(seconds_between(begin, end), 10);
  }
}

TEST_F(RecordingGpu, WhatCannotBeRecordedIsRefusedAndHasNotRun) {
  put(3);
  Recording recording;
  // A stream that nobody waits for in the end.
  EXPECT_THROW(recording.record(*main,
                                [&] {
                                  event->record(*main);
                                  other->wait(*event);
                                  move(2, 0, *other);
                                }),
               DeviceError);
  EXPECT_FALSE(recording.is_recorded());
  // Work that waits for what is not in the recording.
  EXPECT_THROW(recording.record(*main,
                                [&] {
                                  move(2, 0, *main);
                                  joined->record(*other);
                                  main->wait(*joined);
                                }),
               DeviceError);
  EXPECT_THROW(recording.record(*main, [&] { main->synchronize(); }), DeviceError);
  EXPECT_THROW(recording.record(*main,
                                [&] {
                                  move(2, 0, *main);
                                  throw std::runtime_error("of the work's own");
                                }),
               std::runtime_error);
  EXPECT_FALSE(is_being_recorded(*main));
  EXPECT_FALSE(is_being_recorded(*other));
  EXPECT_EQ(get(2), 0);
  // The streams go on as before.
  recording.record(*main, [&] { move(2, 0, *main); });
  recording.replay(*main);
  EXPECT_EQ(get(2), 3);
  EXPECT_THROW(recording.record(StreamView(), [] {}), Error);
}

}  // namespace
}  // namespace lpsgd
