// `lpsgd train`: starts the ranks, checks configuration and data on all of them, trains, and prints one
// message for a failure.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>

#include "comm/agree.h"
#include "comm/nccl_transport.h"
#include "comm/transport.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
#include "nn/graph.h"
#include "trainer/agreement.h"
#include "trainer/checkpoint_list.h"
#include "trainer/commands.h"
#include "trainer/fragments.h"
#include "trainer/mpi_rank.h"
#include "trainer/print.h"
#include "trainer/resume_command.h"
#include "trainer/run_config.h"
#include "trainer/run_data.h"
#include "trainer/run_folder.h"
#include "trainer/stop_signals.h"
#include "trainer/trainer.h"

namespace lpsgd {

namespace {

/// The checkpoint to resume from. If there is none, the first line of output says so, or with `is_required`
/// it is an error. Rank 0 chooses; each other rank verifies what it reads. Adds what rank 0 passed over to
/// `damaged`. Collective.
std::optional<ResumePoint> resume_point(Transport& transport, const std::string& folder, bool is_required,
                                        const char* otherwise, std::vector<std::string>& damaged) {
  std::optional<ResumePoint> point;
  std::string chosen, lacks = "holds no checkpoint";
  collective_try(transport, [&] {
    if (transport.rank() != 0) return;
    remove_unfinished(folder);
    std::vector<PassedOver> passed_over;
    point = find_resume_point(folder, &passed_over);
    if (point) chosen = point->folder;
    for (const PassedOver& one : passed_over) {
      log::warn("{}", text(one));
      damaged.push_back(one.name());
    }
    if (!passed_over.empty()) lacks += " that verifies";
  });
  chosen = transport.all_gather_text(chosen)[0];
  lacks = transport.all_gather_text(lacks)[0];
  if (chosen.empty() && is_required)
    throw SharedError(fmt::format("--resume-required: {} {}", folder, lacks), 2);
  if (chosen.empty() && transport.rank() == 0)
    tell(fmt::format("{}: {}: starting from {} weights\n", folder, lacks, otherwise));
  if (chosen.empty()) return std::nullopt;
  std::string sum;  // where each rank has a disk of its own, the folders may differ
  collective_try(transport, [&] {
    if (!point) point = ResumePoint{chosen, read_manifest(chosen)};
    sum = file_checksum(chosen + "/manifest.json");
  });
  require_agreement(transport, {{fmt::format("the manifest of {}", chosen), sum}});
  return point;
}

/// The exit status of a run that `signal` ended (0: none), after the command that goes on with it.
int end_run(int signal, const Transport& transport, const TrainCommand& command) {
  if (signal == 0) return 0;
  if (transport.rank() == 0)
    tell(fmt::format("to go on: {}\n", resume_command(command.command_line, command.out, launched_as())));
  return 128 + signal;
}

std::string rules_text(const PolicySpec& policy) {
  const std::size_t rules = policy.rules.size();
  return rules == 0 ? "" : fmt::format(" and {} rule{}", rules, rules > 1 ? "s" : "");
}

/// ", but for fc.weight, fc.bias", with the first few names.
/// "a, b, c, d and 7 more"
std::string some_of(std::vector<std::string> names) {
  constexpr std::size_t few = 4;
  const std::size_t more = names.size() - std::min(few, names.size());
  names.resize(names.size() - more);
  return printable(fmt::format("{}", fmt::join(names, ", "))) +
         (more > 0 ? fmt::format(" and {} more", more) : "");
}

/// They would stay random. Those of layers that are never trained are not: they are sines.
void warn_of_random_frozen(const NetworkSpec& spec, const Weights* init) {
  std::vector<std::string> random;
  const Graph& graph = spec.graph();
  for (std::size_t t = 0; t < graph.frozen.size(); ++t)
    if (graph.frozen_inits[t].kind != Init::Kind::sines &&
        (init == nullptr || init->skip.matches(graph.frozen[t].name)))
      random.push_back(graph.frozen[t].name);
  if (!random.empty())
    log::warn("train.freeze: frozen tensors keep their random initial values: {} ({})", some_of(random),
              init == nullptr ? "--init gives them others" : "--init-skip leaves them out");
}

/// Everything after the ranks have started. Returns the exit status. Collective.
int train_on(Transport& transport, const RunConfig& run, const TrainArguments& arguments,
             const NetworkSpec& spec, const TrainData& data, const Weights* init) {
  TrainCommand command;
  command.init = init;
  command.steps = arguments.steps;
  command.command_line = arguments.command_line;
  command.check_replicas = arguments.check_replicas;
  command.trace = arguments.trace;
  command.progress = arguments.progress;
  const RunFolder folder(transport, run, arguments.out, arguments.resume);
  command.out = folder.path();
  if (arguments.resume)
    command.resume = resume_point(transport, command.out, arguments.resume_required,
                                  init == nullptr ? "random" : "the given", command.damaged);
  if (transport.rank() == 0) {
    const std::string warmup =
        codec_warmup_text(run.exchange, assign_codecs(run.exchange.policy, spec.tensors()));
    tell(fmt::format(
        "{} | {} parameters{} | {} rank{} over {}{} | {} | {}\n", printable(spec.name()), spec.parameters(),
        spec.frozen_parameters() > 0 ? fmt::format(", {} more are frozen", spec.frozen_parameters()) : "",
        transport.size(), transport.size() > 1 ? "s" : "",
        run.exchange.transport == TransportKind::nccl ? "nccl" : transport.name(),
        run.exchange.link.emulated() ? fmt::format(" (emulated link: {})", to_text(run.exchange.link)) : "",
        to_text(run.exchange.policy.codec) + rules_text(run.exchange.policy) +
            (warmup.empty() ? "" : fmt::format(" after {} of float32", warmup)),
        command.out));
    for (const std::string& rule : unused_rules(run.exchange.policy, spec.tensors(), spec.frozen_tensors()))
      log::warn("{}", rule);
    if (!command.resume) warn_of_random_frozen(spec, init);
    if (init != nullptr && !command.resume) {
      const std::vector<std::string> left_out = skipped(spec, *init);
      tell(fmt::format("starting from the weights of {}{}\n", printable(arguments.init),
                       left_out.empty() ? "" : ", but for " + some_of(left_out)));
    }
  }
  if (run.exchange.transport == TransportKind::nccl) {
    std::unique_ptr<Transport> nccl;
    collective_try(transport, [&] {
      nccl = make_nccl_transport(transport, Device::cuda(transport.local_rank() % cuda_devices().count));
    });
    return end_run(train_rank(run, command, data, spec, *nccl), transport, command);
  }
  if (!run.exchange.link.emulated())
    return end_run(train_rank(run, command, data, spec, transport), transport, command);
  const std::unique_ptr<Transport> linked = make_linked_transport(transport, run.exchange.link);
  return end_run(train_rank(run, command, data, spec, *linked), transport, command);
}

struct Prepared {
  RunConfig run;
  std::unique_ptr<NetworkSpec> spec;
  TrainData data;
  std::optional<Weights> init;
  const Weights* initial() const { return init ? &*init : nullptr; }
};

/// Configuration and network: refused before anything starts.
void prepare_config(const TrainArguments& arguments, int ranks, bool under_mpirun, Prepared& out) {
  out.run = load_run_config(arguments.config, arguments.overrides, config::Environment::expand);
  out.spec = std::make_unique<NetworkSpec>(network_of(out.run));
  if (out.run.exchange.transport == TransportKind::threads) ranks = static_cast<int>(out.run.exchange.ranks);
  naming_options(out.run, [&] {
    resolve_ranks(out.run, ranks);
    check_ranks(out.run, ranks, under_mpirun);
    with_locations(out.run, [&] { check_fragments(out.run.sync.fragments, out.spec->tensors().size()); });
  });
  if (arguments.check_replicas > 0 && out.run.sync.streams())
    throw ConfigError(
        "--check-replicas: with sync.fragments or sync.delay the replicas are never equal as a whole; "
        "replicas_equal in metrics.jsonl says whether all ranks have agreed on the same weights");
  if (arguments.check_replicas > 0 && out.run.exchange.collective == Collective::simulated)
    throw ConfigError("--check-replicas: with exchange.collective: simulated the replicas are not equal");
  if (!arguments.init.empty())
    out.init = read_initial_weights(arguments.init, *out.spec, arguments.init_skip);
}

void prepare_data(Prepared& out) {
  out.data = open_data(out.run);
  out.spec = std::make_unique<NetworkSpec>(network_for(out.run, {out.data.train.get(), out.data.test.get()}));
  naming_options(out.run, [&] {
    check_data(out.run, *out.spec, *out.data.train, Split::train);
    check_data(out.run, *out.spec, *out.data.test, Split::test);
  });
  if (kind_of(*out.data.train) != DataKind::images) return;
  // The run's folder records the resolved values. `auto` is another crop where only one split has images of
  // the network's size; infer cuts images as the evaluation does.
  if (has_images_of_any_size(out.run.data.dataset))
    out.run.recorded_evaluate = evaluation_of(out.run, *out.spec, *out.data.test);
  const Normalization used = normalization(out.run.data, out.spec->input_shape().back());
  out.run.data.mean = used.mean;
  out.run.data.std = used.std;
}

/// Collective.
void prepare_data_together(Transport& transport, Prepared& prepared) {
  const ScopedPhase data(transport, Phase::data);
  std::vector<Fact> facts;
  collective_try(transport, [&] {
    prepare_data(prepared);
    if (transport.size() > 1) facts = data_facts(prepared.run, prepared.data);
  });
  require_agreement(transport, facts);
}

int train_with_threads(const TrainArguments& arguments, Prepared& prepared) {
  prepare_data(prepared);
  install_signal_handlers();
  int status = 0;  // rank 0's, as every rank's
  run_thread_ranks(static_cast<int>(prepared.run.exchange.ranks), [&](Transport& transport) {
    transport.collectives().limits = limits_of(prepared.run);
    try {
      const int mine =
          train_on(transport, prepared.run, arguments, *prepared.spec, prepared.data, prepared.initial());
      if (transport.rank() == 0) status = mine;
    } catch (const SharedError&) {
      throw;
    } catch (const CommError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw Error(fmt::format("rank {}: out of memory", transport.rank()));
    } catch (const std::exception& e) {
      throw Error(fmt::format("rank {}: {}", transport.rank(), e.what()));
    }
  });
  return status;
}

int train_with_mpi(const TrainArguments& arguments, std::unique_ptr<Transport> transport, Prepared& prepared,
                   bool under_mpirun) {
  install_signal_handlers();
  std::vector<Fact> facts = start_facts("train");
  for (Fact& fact : option_facts(arguments)) facts.push_back(std::move(fact));
  return run_mpi_rank(std::move(transport), facts, [&](Transport& ranks) {
    collective_try(ranks, [&] { prepare_config(arguments, ranks.size(), under_mpirun, prepared); });
    require_agreement(ranks, config_facts(prepared.run));
    if (prepared.init)
      require_agreement(ranks, {{"the checksum of --init's weights", prepared.init->checksum}});
    ranks.collectives().limits = limits_of(prepared.run);
    prepare_data_together(ranks, prepared);
    return train_on(ranks, prepared.run, arguments, *prepared.spec, prepared.data, prepared.initial());
  });
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  std::signal(SIGPIPE, SIG_IGN);
  const LaunchedAs launched = launched_as();
  init_logging(launched.rank, launched.size);
  Prepared prepared;
  if (launched.size > 1) return train_with_mpi(arguments, make_mpi_transport(), prepared, true);
  prepare_config(arguments, 1, false, prepared);
  if (prepared.run.exchange.transport == TransportKind::threads)
    return train_with_threads(arguments, prepared);
  return train_with_mpi(arguments, make_mpi_transport(), prepared, false);
}

}  // namespace lpsgd
