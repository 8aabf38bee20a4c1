// The learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <map>

#include "core/config.h"

namespace lpsgd {

struct ScheduleOptions {
  double lr = 0.1;
  std::int64_t warmup_epochs = 0;
  double warmup_from = 0.1;              // the rate at step 0, from which it rises linearly to lr
  std::map<std::int64_t, double> decay;  // {80: 0.1}: after 80 epochs the rate is multiplied by 0.1
  std::int64_t every = 0;                // of decay: {every: 2, factor: 0.94}; 0: use the map
  double factor = 1;
};
void fields(config::Visitor& visitor, ScheduleOptions& options);  // section `schedule`

/// The rate of step `step`, which counts from 0, if an epoch has `steps_per_epoch` steps.
double learning_rate(const ScheduleOptions& options, std::int64_t step, std::int64_t steps_per_epoch);

}  // namespace lpsgd
