#include "trainer/epoch_evaluation.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "trainer/epoch_sums.h"
#include "trainer/evaluate.h"

namespace lpsgd {

EpochEvaluation::EpochEvaluation(Transport& transport, Network& network, Loader& loader)
    : transport_(transport), network_(network), loader_(loader), agreement_(transport) {}

Evaluation EpochEvaluation::run(const AveragedWeights* averaged,
                                const std::function<Agreed(StepAgreement&)>& after_batch) {
  const std::vector<std::int64_t> batches = transport_.all_gather(loader_.batches());
  const std::int64_t most = *std::max_element(batches.begin(), batches.end());  // of all ranks
  const AveragedBuffers statistics(transport_, network_);
  std::optional<AveragedWeights::Installed> installed;
  if (averaged) installed.emplace(*averaged, network_);

  Evaluation out;
  BatchMetrics of_rank;
  std::int64_t done = 0;  // batches
  const auto go_on = [&] {
    ++done;
    out.signal = after_batch(agreement_).signal;
    return out.signal == 0;
  };
  agreement_.restart(now_seconds());
  try {
    of_rank = evaluate(network_, loader_, statistics.buffers(), &out.bad, go_on);
  } catch (const FileError&) {
    out.failure = std::current_exception();
  }
  // A rank with fewer batches, or with a bad file, takes part in what the ranks agree on all the same.
  while (done < most && out.signal == 0) go_on();
  if (out.signal == 0) out.validation = sum(of_all_ranks(transport_, of_rank));
  return out;
}

}  // namespace lpsgd
