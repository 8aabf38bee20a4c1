#include "trainer/rank_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/agree.h"
#include "core/error.h"
#include "core/log.h"

namespace lpsgd {

RankTrace::RankTrace(std::string folder)
    : folder_(std::move(folder)), trace_(folder_.empty() ? nullptr : std::make_unique<Trace>()) {}

void RankTrace::prepare(Transport& transport) const {
  if (!trace_) return;
  collective_try(transport, [&] {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) throw FileError(fmt::format("--trace {}: cannot be made: {}", folder_, error.message()));
    if (::access(folder_.c_str(), W_OK | X_OK) != 0)
      throw FileError(fmt::format("--trace {}: cannot be written to: {}", folder_,
                                  std::error_code(errno, std::generic_category()).message()));
  });
}

void RankTrace::write(Transport& transport) const {
  if (!trace_) return;
  collective_try(transport, [&] {
    trace_->write(fmt::format("{}/rank{:04}.json", folder_, transport.rank()), transport.rank(),
                  transport.size());
  });
  if (transport.rank() == 0 && trace_->dropped() > 0)
    log::warn("the trace was full: {} spans were left out; --steps makes it shorter", trace_->dropped());
}

namespace {

/// HTA takes parts of the main thread for kernels, unless a GPU has kernels of its own.
const char* computing(StreamView compute) {
  return compute.device().is_cuda() ? "cpu_op" : "kernel";
}

}  // namespace

StepTrace::StepTrace(Trace& to, StreamView compute)
    : trace_(to),
      steps_(to.track("steps")),
      compute_(to.track("main thread")),
      step_(to.label("ProfilerStep#", "user_annotation")),
      data_(to.label("data", "cpu_op")),
      forward_(to.label("forward", computing(compute))),
      backward_(to.label("backward", computing(compute))),
      exposed_(to.label("exposed communication", "cpu_op")),
      update_(to.label("update", computing(compute))) {
  if (!compute.device().is_cuda()) return;
  updates_ = std::make_unique<StreamTrace>(to, compute, "GPU: updates");
  updated_ = updates_->label("update");
}

void StepTrace::add(std::int64_t number, const StepTimes& at) const {
  trace_.span(steps_, step_, at.step, at.update, number);
  add_micro_batch(at);
  const bool updated_before = at.sending > 0;
  if (updated_before) trace_.span(compute_, update_, at.backward, at.sending);
  trace_.span(compute_, exposed_, updated_before ? at.sending : at.backward, at.exposed);
  trace_.span(compute_, update_, at.exposed, at.update);
}

void StepTrace::add_micro_batch(const StepTimes& at) const {
  trace_.span(compute_, data_, at.begin, at.data);
  trace_.span(compute_, forward_, at.data, at.forward);
  trace_.span(compute_, backward_, at.forward, at.backward);
}

}  // namespace lpsgd
