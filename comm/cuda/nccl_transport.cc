#include "comm/nccl_transport.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/agree.h"
#include "comm/backoff.h"
#include "comm/transport_over.h"
#include "core/cuda/check.h"
#include "core/error.h"

namespace lpsgd {
namespace {

/// How NCCL identifies a GPU: by its host and its bus address there.
std::string identity(Device device) {
  char bus[64] = "";
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device.index));
  const char* host_id = std::getenv("NCCL_HOSTID");
  char host[256] = "";
  if (host_id == nullptr) ::gethostname(host, sizeof host - 1);
  return std::string(host_id != nullptr ? host_id : host) + " " + bus;
}

class NcclTransport final : public TransportOver {
 public:
  NcclTransport(Transport& inner, Device device)
      : TransportOver(inner), device_(device), exceptions_(std::uncaught_exceptions()) {
    prepare();
    const ScopedDevice current(device);
    ncclUniqueId id{};
    collective_try(inner_, [&] {
      if (rank() != 0) return;
      if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
        throw DeviceError("NCCL: no unique id: " + text_of(result));
    });
    inner_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    // Calls do not block, so that a wait for a rank that cannot connect can be ended.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      const std::lock_guard lock(mutex_);
      wait_while_in_progress(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config),
                             "ncclCommInitRankConfig");
    } catch (...) {
      abort_communicator(take_communicator());
      throw;
    }
    std::packaged_task<void()> task([this, device] {
      const ScopedDevice watched(device);
      abort_communicator(watch());  // the abort may outlive this object, of which it uses nothing
    });
    watch_ended_ = task.get_future();
    watch_ = std::thread(std::move(task));
  }

  ~NcclTransport() override {
    if (std::uncaught_exceptions() > exceptions_) request_abort();
    {
      const std::lock_guard lock(watch_mutex_);
      stop_ = true;
      watch_wake_.notify_all();
    }
    // NCCL waits for graphs that hold the communicator. After a device error these may never be destroyed;
    // the wait then ends, so that the error is reported.
    if (watch_ended_.wait_for(std::chrono::seconds(10)) == std::future_status::ready)
      watch_.join();
    else
      watch_.detach();
    if (broken_) return;
    try {
      const ScopedDevice current(device_);
      stream_.synchronize();
      const std::lock_guard lock(mutex_);
      wait_while_in_progress(ncclCommFinalize(comm_), "ncclCommFinalize");
      ncclCommDestroy(comm_);
      comm_ = nullptr;
    } catch (const std::exception&) {
      abort_communicator(take_communicator());
    }
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  const char* name() const override { return "nccl"; }
  bool takes_device_memory() const override { return true; }
  bool ordered() const override { return true; }
  StreamView stream() const override { return stream_; }
  Transport& control() override { return inner_.control(); }

  void begin_group() override {
    grouping_ = true;
    group_.clear();
  }
  void end_group() override {
    grouping_ = false;
    if (group_.empty()) return;
    run("ncclGroupEnd", [&] {
      ncclResult_t result = ncclGroupStart();
      for (const Message& m : group_) {
        if (result != ncclSuccess) break;
        result = m.sends ? ncclSend(m.bytes, m.size, ncclUint8, m.peer, comm_, stream_.view().handle())
                         : ncclRecv(m.bytes, m.size, ncclUint8, m.peer, comm_, stream_.view().handle());
        if (result == ncclInProgress) result = ncclSuccess;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    });
  }

  Request isend(std::span<const std::byte> bytes, int to, int) override {
    require(grouping_, "NCCL's messages come in groups");
    count_message(bytes.size());
    group_.push_back({true, to, const_cast<std::byte*>(bytes.data()), bytes.size()});  // only read
    return 0;
  }
  Request irecv(std::span<std::byte> bytes, int from, int) override {
    require(grouping_, "NCCL's messages come in groups");
    group_.push_back({false, from, bytes.data(), bytes.size()});
    return 0;
  }
  Request iallreduce(std::span<float> values) override {
    bytes_sent_ += ring_share(values.size_bytes());
    run("ncclAllReduce", [&] {
      return ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum, comm_,
                           stream_.view().handle());
    });
    return 0;
  }
  bool test(Request) override { return true; }

  void throw_if_failed() override {
    if (broken_) throw_broken();  // set before the abort, so that aborted work does not count as done
  }

  void cancel() noexcept override { request_abort(); }
  void timed_out(const std::string& message) noexcept override {
    TransportOver::timed_out(message);
    const std::lock_guard lock(watch_mutex_);
    failure_ = message;
  }

 private:
  struct Message {
    bool sends;
    int peer;
    std::byte* bytes;
    std::size_t size;
  };

  /// Makes the stream and checks that no two ranks share a GPU. Throws on all ranks or on none.
  void prepare() {
    std::string mine;
    collective_try(inner_, [&] {
      stream_ = Stream(device_, StreamPriority::high);
      mine = identity(device_);
    });
    const std::vector<std::string> all = inner_.all_gather_text(mine);
    for (std::size_t a = 0; a < all.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        if (all[a] == all[b])
          throw DeviceError(fmt::format(
              "transport nccl: ranks {} and {} share one GPU ({}); NCCL needs one for each rank. Start as "
              "many "
              "ranks as there are GPUs, use transport mpi, or set NCCL_HOSTID differently on each rank",
              b, a, all[a]));
  }

  std::string text_of(ncclResult_t result) const {
    const char* more = ncclGetLastError(comm_);
    std::size_t free = 0, all = 0;
    std::string memory;  // too little of it is a frequent cause
    if (result == ncclUnhandledCudaError && cudaMemGetInfo(&free, &all) == cudaSuccess)
      memory = fmt::format(" ({} bytes of device memory are free)", free);
    return fmt::format("{}{}{}{}", ncclGetErrorString(result), more != nullptr && *more != 0 ? ": " : "",
                       more != nullptr ? more : "", memory);
  }

  /// Makes a call that queues work, and waits until NCCL has queued it.
  template <class Call>
  void run(const char* name, Call call) {
    const ScopedDevice current(device_);
    const std::lock_guard lock(mutex_);
    if (broken_) throw_broken();
    wait_while_in_progress(call(), name);
  }

  /// With mutex_ held. A rank connects to another rank with its first message to it; connecting takes a
  /// while.
  void wait_while_in_progress(ncclResult_t result, const char* call) {
    Patience patience(collectives().limit());
    for (Backoff backoff; result == ncclInProgress; backoff.pause()) {
      if (patience.due())
        patience.report(*this,
                        fmt::format("NCCL: {} has waited {:.0f} s for other ranks", call, patience.waited()));
      if (broken_) throw_broken();
      ncclResult_t state = ncclSuccess;
      result = ncclCommGetAsyncError(comm_, &state);
      if (result == ncclSuccess) result = state;
    }
    if (result != ncclSuccess) throw CommError(fmt::format("NCCL: {}: {}", call, text_of(result)));
  }

  /// Watches the work in flight: after an error in it the stream would wait for ever. Returns the
  /// communicator if it must be aborted, else nullptr.
  ncclComm_t watch() {
    for (;;) {
      {
        std::unique_lock lock(watch_mutex_);
        watch_wake_.wait_for(lock, std::chrono::milliseconds(500), [&] { return stop_ || broken_; });
        if (broken_) break;
        if (stop_) return nullptr;
      }
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock.owns_lock()) continue;  // a call is under way, and checks for errors itself
      ncclResult_t state = ncclSuccess;
      const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
      if (result != ncclSuccess) state = result;
      if (state == ncclSuccess || state == ncclInProgress) continue;
      const std::lock_guard failing(watch_mutex_);
      failure_ = "NCCL: " + text_of(state);
      broken_ = true;
    }
    return take_communicator();
  }

  [[noreturn]] void throw_broken() {
    const std::lock_guard lock(watch_mutex_);
    throw CommError(failure_.empty() ? "NCCL's communicator was given up" : failure_);
  }

  /// Makes the watching thread abort the communicator. An abort here would not return: NCCL waits until no
  /// graph holds the communicator, and the caller destroys its graphs only after this.
  void request_abort() noexcept {
    const std::lock_guard lock(watch_mutex_);
    broken_ = true;  // ends a wait for a connection
    watch_wake_.notify_all();
  }

  /// Takes the communicator out of use; nullptr if there is none.
  ncclComm_t take_communicator() noexcept {
    broken_ = true;
    const std::lock_guard lock(mutex_);
    return std::exchange(comm_, nullptr);
  }

  static void abort_communicator(ncclComm_t comm) noexcept {
    if (comm != nullptr) ncclCommAbort(comm);
  }

  const Device device_;
  Stream stream_{Device::cpu()};  // the device's, once prepare() has run
  const int exceptions_;
  bool grouping_ = false;
  std::vector<Message> group_;

  std::mutex mutex_;  // guards what follows; held during calls
  ncclComm_t comm_ = nullptr;

  std::mutex watch_mutex_;  // guards what follows
  std::condition_variable watch_wake_;
  std::atomic<bool> broken_{false};
  std::string failure_;
  bool stop_ = false;
  std::future<void> watch_ended_;  // ready once the communicator is aborted, if it has to be
  std::thread watch_;
};

}  // namespace

std::string nccl_missing() {
  return "";
}

std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Transport> make_nccl_transport(Transport& inner, Device device) {
  if (!device.is_cuda()) throw DeviceError("transport nccl: needs a CUDA device on every rank");
  return std::make_unique<NcclTransport>(inner, device);
}

}  // namespace lpsgd
