#include "nn/cuda/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"

namespace lpsgd {

void throw_cublas_error(cublasStatus_t status, std::source_location where) {
  throw DeviceError(fmt::format("cuBLAS: {} ({}) at {}:{}", cublasLtGetStatusString(status),
                                cublasLtGetStatusName(status), where.file_name(), where.line()),
                    where);
}

namespace cuda {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;
constexpr std::int64_t memory_alignment = 256, chunk_bytes = 4 * mib;
constexpr std::int64_t shared_partials = mib, shared_counters = 1 << 14;
constexpr std::int64_t shared_bytes = shared_partials + shared_counters * sizeof(unsigned);  // of a branch

/// All that a choice of algorithms depends on except the operation.
std::string device_text(Device device, std::int64_t workspace) {
  const CudaDeviceInfo info = cuda_device_info(device.index);
  const char* tf32 = std::getenv("NVIDIA_TF32_OVERRIDE");  // 0: libraries do not take TF32
  return fmt::format(
      "{}, {} multiprocessors, driver {} for CUDA {}, cuDNN {}, cuBLASLt {}, workspace {}, TF32 override {}, "
      "engine policy {}",
      info.name, info.multiprocessors, cuda_driver_text(), cuda_devices().driver_version, cudnnGetVersion(),
      cublasLtGetVersion(), workspace, tf32 != nullptr ? printable(tf32) : "none", engine_policy);
}

/// The most that a plan may take of the libraries' workspace: enough for fast algorithms, but a small part of
/// the device's memory. In float32, FFTs of VGG19's filters with 512 channels take more than a GiB.
std::int64_t largest_workspace(Device device) {
  const auto memory = static_cast<std::int64_t>(cuda_device_info(device.index).memory);
  return std::clamp(memory / 32, 64 * mib, 2048 * mib);
}

}  // namespace

Context::Context(Device on, Compute arithmetic, bool is_deterministic, double search_seconds)
    : device(on),
      compute(arithmetic),
      deterministic(is_deterministic),
      capability_major(cuda_device_info(on.index).major),
      type(arithmetic == Compute::bf16 ? DataType::bf16 : DataType::f32),
      stream(on),
      plan_budget_(search_seconds, now_seconds) {
  check(cublasLtCreate(&blas));  // first, so that cuDNN finds the library loaded when it looks for it
  check(cudnnCreate(&cudnn));
  check(cudnnSetStream(cudnn, handle()));
  workspace_limit = largest_workspace(device);
  if (deterministic)
    workspace(workspace_limit);  // at once: choices must not depend on how much memory is free
  else
    plan_cache = PlanCache(cache_folder(), device_text(device, workspace_limit), search_seconds);
  shared_ = array<std::byte>(shared_bytes);
  bad_token = array<float>(1);
  const float none = std::numeric_limits<float>::quiet_NaN();
  copy_bytes(bad_token, &none, sizeof none, stream);
  stream.synchronize();
}

Context::~Context() {
  cudaStreamSynchronize(handle());
  conv_choices.clear();  // plans go before the handle they were made with
  if (blas) cublasLtDestroy(blas);
  if (cudnn) cudnnDestroy(cudnn);
}

void* Context::allocate(std::int64_t bytes) {
  bytes = (std::max<std::int64_t>(bytes, 1) + memory_alignment - 1) / memory_alignment * memory_alignment;
  if (bytes > chunk_bytes / 4) return memory_.emplace_back(device, static_cast<std::size_t>(bytes)).data();
  if (bytes > chunk_left_) {
    chunk_ = memory_.emplace_back(device, static_cast<std::size_t>(chunk_bytes)).data();
    chunk_left_ = chunk_bytes;
  }
  void* out = chunk_;
  chunk_ += bytes;
  chunk_left_ -= bytes;
  return out;
}

void* Context::workspace(std::int64_t bytes) {
  if (branch_ != 0) {
    require(static_cast<std::size_t>(bytes) <= workspace_bytes(),
            "an operation takes more workspace than its branch has");
    return side_workspace_.data();
  }
  if (static_cast<std::size_t>(bytes) > workspace_.bytes()) {
    require(!planned_, "a plan takes more workspace than was reserved");
    grow(workspace_, bytes);
  }
  return workspace_.data();
}

std::byte* Context::scratch(std::int64_t bytes) {
  if (static_cast<std::size_t>(bytes) > scratch_.bytes()) {
    require(!planned_, "an operation takes more scratch memory than was reserved");
    grow(scratch_, bytes);
  }
  return scratch_.data();
}

void Context::grow(DeviceMemory& memory, std::int64_t bytes) {
  stream.synchronize();
  memory = {};  // first, so that both need not fit
  memory = DeviceMemory(device, static_cast<std::size_t>(bytes));
}

bool Context::has_workspace(PlanSearch& search, std::int64_t bytes) {
  try {
    workspace(bytes);
    return true;
  } catch (const DeviceError& e) {
    log::debug("workspace: {}", e.what());
    search.leave_out();
    return false;
  }
}

void Context::finish_planning() {
  stream.synchronize();
  plan_cache.save();
  workspace_ = {};
  // At least one byte: the libraries want a pointer also where no plan needs any.
  workspace_ = DeviceMemory(device, static_cast<std::size_t>(std::max<std::int64_t>(kept_workspace_, 1)));
  if (!branches_.empty())
    side_workspace_ =
        DeviceMemory(device, static_cast<std::size_t>(std::max<std::int64_t>(side_workspace_bytes_, 1)));
  planned_ = true;
}

std::size_t Context::workspace_bytes() const {
  if (branch_ == 0) return workspace_.bytes();
  return branch_ == 1 ? side_workspace_.bytes() : 0;
}

RowSums Context::row_sums(std::int64_t rows, std::int64_t channels, int max_pack) {
  const Cut cut = cut_rows(type, rows, channels, max_pack);
  return {cut, partials<double2>(cut), counters(cut.tiles)};
}

void* Context::partial_bytes(std::int64_t bytes) {
  return bytes <= shared_partials ? shared_ : allocate(bytes);
}

unsigned* Context::counters(std::int64_t n) {
  return n <= shared_counters ? reinterpret_cast<unsigned*>(shared_ + shared_partials) : array<unsigned>(n);
}

void* Context::on_this_branch(void* shared) const {
  const std::ptrdiff_t at = static_cast<std::byte*>(shared) - shared_;
  if (branch_ == 0 || at < 0 || at >= shared_bytes) return shared;  // the operation's own
  require(branch_ != announcing_branch, "an operation on the branch that announces");
  return side_shared_ + static_cast<std::ptrdiff_t>(branch_ - 1) * shared_bytes + at;
}

NormState Context::here(NormState state) const {
  state.partials = here(state.partials);
  state.finished = here(state.finished);
  return state;
}

void Context::reserve_branches(std::int64_t workspace) {
  side_workspace_bytes_ = workspace;
  for (std::size_t b = 1; b <= announcing_branch; ++b) branches_.emplace_back(device);
  side_shared_ = array<std::byte>(static_cast<std::int64_t>(most_branches - 1) * shared_bytes);
}

void Context::enter_branch(std::size_t branch) {
  branch_ = branch;
  check(cudnnSetStream(cudnn, handle()));
}

void Context::run_on_branches(const BranchSchedule& schedule, const std::function<void(std::size_t)>& work) {
  require(!branches_.empty(), "no branches were reserved");
  while (branch_ends_.size() <= schedule.tasks.size()) branch_ends_.emplace_back(device);
  Event& begin = branch_ends_.back();
  begin.record(stream);
  std::array<bool, most_branches + 1> has_begun{true};
  try {
    for (std::size_t t = 0; t < schedule.tasks.size(); ++t) {
      const BranchSchedule::Place& place = schedule.tasks[t];
      enter_branch(place.branch);
      if (!std::exchange(has_begun[place.branch], true)) queue().wait(begin);
      for (const std::size_t other : place.waits) queue().wait(branch_ends_[other]);
      work(t);
      if (place.is_awaited) branch_ends_[t].record(queue());
    }
  } catch (...) {
    enter_branch(0);
    throw;
  }
  enter_branch(0);
  for (const std::size_t t : schedule.ends) stream.wait(branch_ends_[t]);
}

void Context::parameters(std::span<const float> arena) {
  parameters_ = arena;
  if (type == DataType::bf16)
    bf16_parameters_ = allocate(static_cast<std::int64_t>(arena.size()) * size_of(type));
}

void Context::refresh() {
  if (bf16_parameters_ == nullptr) return;
  check(launch_convert(parameters_.data(), DataType::f32, bf16_parameters_, type,
                       static_cast<std::int64_t>(parameters_.size()), handle()));
}

const void* Context::operand(const float* parameter) const {
  if (bf16_parameters_ == nullptr) return parameter;
  return static_cast<const std::byte*>(bf16_parameters_) + (parameter - parameters_.data()) * size_of(type);
}

bool Context::measure(PlanSearch& search, const std::string& name, const std::function<void()>& run,
                      const std::function<bool()>& accept) {
  Event begin(device, Event::Timing::on), end(device, Event::Timing::on, Event::Wait::sleep);
  try {
    if (!std::exchange(loaded_, true)) {  // the first run of all waits until libraries are loaded
      run();
      stream.synchronize();
    }
    plan_budget_.begin();
    const auto timed = [&](int runs) {
      begin.record(stream);
      for (int i = 0; i < runs; ++i) run();
      end.record(stream);
      end.synchronize();
      return seconds_between(begin, end) / runs;
    };
    const PlanSearch::Result result = search.measure(timed, accept);
    log::debug("{}: {:.3f} ms{}, {} runs", name, 1e3 * result.seconds,
               result.dropped   ? ", dropped"
               : result.refused ? ", refused"
               : result.fastest ? ", fastest so far"
                                : "",
               result.runs);
    return result.fastest;
  } catch (const DeviceError& e) {
    log::debug("{}: {}", name, e.what());
    return false;
  }
}

Terms terms_of(const std::vector<const void*>& pointers) {
  if (pointers.size() > static_cast<std::size_t>(max_terms))
    throw DeviceError(
        fmt::format("the output of a layer is read by {} others; on a GPU gradients of at most {} are added",
                    pointers.size(), max_terms));
  Terms out;
  for (const void* p : pointers) out.at[out.count++] = p;
  return out;
}

}  // namespace cuda
}  // namespace lpsgd
