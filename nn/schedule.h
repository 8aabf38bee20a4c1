// The learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "core/config.h"

namespace lpsgd {

enum class RateScaling : std::uint8_t { none, linear, sqrt };

/// From the end of the warm-up to that of the run the rate falls step by step to `to`: linearly, or along
/// half a period of a cosine (Loshchilov and Hutter 2017, SGDR, equation 5, without restarts).
struct RateFall {
  bool cosine = false;
  double to = 0;
};

struct ScheduleOptions {
  double lr = 0.1;
  RateScaling lr_scaling = RateScaling::none;  // of lr, from lr_batch_size to the run's batch size
  std::int64_t lr_batch_size = 128;
  double scale = 1;  // no key: what lr is multiplied by, from scale_rate()
  std::int64_t warmup_epochs = 0;
  double warmup_from = 0.1;              // the rate at step 0, from which it rises linearly to lr
  std::map<std::int64_t, double> decay;  // {80: 0.1}: after 80 epochs the rate is multiplied by 0.1
  std::int64_t every = 0;                // of decay: {every: 2, factor: 0.94}; 0: use the map
  double factor = 1;
  std::map<std::int64_t, double> momentum;  // {1: 0.9}: after 1 epoch it replaces optimizer.momentum
  std::optional<RateFall> fall;             // of decay: {linear: 0} or {cosine: 0}
};
void fields(config::Visitor& visitor, ScheduleOptions& options);  // section `schedule`

/// Sets the rate's scale for a global batch of this size.
void scale_rate(ScheduleOptions& options, std::int64_t batch_size);

/// Checks the schedule of a run of so many epochs, with global batches of this size. Throws ConfigError
/// "schedule.decay: ...".
void check_schedule(const ScheduleOptions& options, std::int64_t epochs, std::int64_t batch_size);

/// The rate of step `step`, which counts from 0, if an epoch has `steps_per_epoch` steps and the run `epochs`
/// epochs.
double learning_rate(const ScheduleOptions& options, std::int64_t step, std::int64_t steps_per_epoch,
                     std::int64_t epochs);

/// The momentum of an epoch, which counts from 0, if it begins with `initial`.
double momentum_at(const ScheduleOptions& options, std::int64_t epoch, double initial);

}  // namespace lpsgd
