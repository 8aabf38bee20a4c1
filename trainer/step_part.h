#pragma once

#include "core/clock.h"
#include "core/range.h"
#include "core/stopwatch.h"

namespace lpsgd {

/// A part of a step: measured, and shown to profilers. Returns when it ended.
template <class Work>
double part(const char* name, Stopwatch& watch, const Work& work) {
  const ScopedRange range(name);
  watch.start();
  work();
  watch.stop();
  return now_seconds();
}

}  // namespace lpsgd
