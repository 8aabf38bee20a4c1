// The evaluation after an epoch, by all ranks together.
#pragma once

#include <exception>
#include <functional>

#include "comm/transport.h"
#include "data/loader.h"
#include "nn/network.h"
#include "trainer/averaged_weights.h"
#include "trainer/bad_samples.h"
#include "trainer/metrics.h"
#include "trainer/step_agreement.h"

namespace lpsgd {

struct Evaluation {
  int signal = 0;              // that a rank has caught: the evaluation was abandoned. 0: none
  BatchMetrics validation;     // of all ranks
  BadSamples bad;              // of this rank
  std::exception_ptr failure;  // of a file that this rank cannot read
};

class EpochEvaluation {
 public:
  /// All three must outlive it. The loader has this rank's part of the test set.
  EpochEvaluation(Transport& transport, Network& network, Loader& loader);

  /// Loss and hits of `averaged`, or without it of the network's weights, with the mean of the ranks' running
  /// statistics. `after_batch` is called as often on every rank: the ranks agree on what to do next.
  /// Collective.
  Evaluation run(const AveragedWeights* averaged, const std::function<Agreed(StepAgreement&)>& after_batch);

 private:
  Transport& transport_;
  Network& network_;
  Loader& loader_;
  StepAgreement agreement_;
};

}  // namespace lpsgd
