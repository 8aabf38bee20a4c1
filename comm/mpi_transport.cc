// Ranks as processes under mpirun. Only nonblocking calls are used, each polled in a loop that yields:
// MPICH's blocking calls spin, which keeps the core from the rank they wait for.
#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <thread>

#include "comm/backoff.h"
#include "comm/slots.h"
#include "comm/transport.h"
#include "comm/waiting.h"
#include "core/clock.h"
#include "core/error.h"

namespace lpsgd {
namespace {

void check(int result, const char* call, std::source_location where = std::source_location::current()) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(result, text, &length) != MPI_SUCCESS)
    std::snprintf(text, sizeof text, "error %d", result);
  throw CommError(fmt::format("{}: {}", call, text), where);
}

/// Whether a message was longer than the memory for it.
bool is_truncated(int result) {
  int error_class = MPI_SUCCESS;
  return result != MPI_SUCCESS && MPI_Error_class(result, &error_class) == MPI_SUCCESS &&
         error_class == MPI_ERR_TRUNCATE;
}

/// UCX announces a large message and sends it after the receiver has answered. Over TCP the link is idle
/// until then, longest while the receiver's cores compute. If messages are sent at once, the kernel's buffers
/// keep the link busy (receives are posted before, so little is copied). The setting is not changed with
/// RDMA, which saves a copy, if all ranks share a machine, or if the user has set it.
void send_at_once_over_tcp() {
  std::error_code error;
  const bool rdma = !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
  if (launched_as().several_machines && !rdma) ::setenv("UCX_RNDV_THRESH", "inf", 0);
}

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::size_t largest_message);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return "mpi"; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  bool takes_device_memory() const override;

  Request isend(std::span<const std::byte> bytes, int to, int tag) override;
  Request irecv(std::span<std::byte> bytes, int from, int tag) override;
  Request iallreduce(std::span<float> values) override;
  bool test(Request request) override;
  void reserve(std::size_t per_peer) override;

  Collectives& collectives() override { return collectives_; }

  void abort(int status) noexcept override {
    broken_ = true;
    end_process_in(4, "");  // should MPI_Abort not return
    // MPICH's launcher drops what it has not read of a rank's output when the job ends.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    MPI_Abort(MPI_COMM_WORLD, status);
  }
  void cancel() noexcept override { broken_ = true; }

 private:
  /// An operation: its parts in order. `expected` is each part's size in a receive, -1 otherwise.
  struct Operation {
    std::vector<MPI_Request> parts;
    std::vector<std::ptrdiff_t> expected;
    std::size_t done = 0;     // parts complete
    int from = -1, tag = -1;  // of a receive
    bool in_flight() const { return done < parts.size(); }
  };

  struct Channel {
    MPI_Comm comm;
    int tag;
  };
  Channel channel(int tag) const {
    if (tag == control_tag) return {control_, 0};
    require(tag >= 0 && tag <= tag_limit_, "a tag that MPI does not allow");
    return {comm_, tag};
  }

  void answer_peers() const;
  Request take();
  MPI_Request* add_part(Request request, std::ptrdiff_t expected = -1) {
    Operation& operation = operations_[request];
    operation.expected.push_back(expected);
    return &operation.parts.emplace_back(MPI_REQUEST_NULL);
  }
  /// Calls part(offset, length) for each part of a message of `bytes` bytes; an empty one is one part.
  template <class Part>
  void for_parts(std::size_t bytes, std::size_t largest, Part part) {
    std::size_t at = 0;
    do {
      const std::size_t n = std::min(largest, bytes - at);
      part(at, static_cast<int>(n));
      at += n;
    } while (at < bytes);
  }

  const std::size_t largest_;
  // Duplicates, so that other libraries' messages are not matched; one for the collectives' messages.
  MPI_Comm comm_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  int local_rank_ = 0, local_size_ = 1;
  int tag_limit_ = 32767;
  bool owns_mpi_ = false;
  bool broken_ = false;
  int exceptions_;
  Slots<Operation> operations_;
  Collectives collectives_{*this};
};

/// LPSGD_START_TIMEOUT in seconds; nothing if it is set to something else.
std::optional<double> start_timeout() {
  const char* text = std::getenv("LPSGD_START_TIMEOUT");
  if (text == nullptr) return 300;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != 0 || !(seconds >= 0)) return std::nullopt;
  return seconds;
}

MpiTransport::MpiTransport(std::size_t largest_message)
    : largest_(largest_message / sizeof(float) * sizeof(float)), exceptions_(std::uncaught_exceptions()) {
  require(largest_ > 0 && largest_ <= std::size_t{1} << 30, "largest_message is 4 bytes to 1 GiB");
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0) throw CommError("MPI was finalised already and cannot be started twice in a process");
  const Limit start{start_timeout().value_or(60), "LPSGD_START_TIMEOUT"};
  const int me = launched_as().rank;
  end_process_in(
      start.seconds > 0 ? start.seconds + seconds_until_turn(me) : 0,
      fmt::format("rank {}: MPI has not started within the {:.0f} s that {} allows: a rank does not "
                  "start or cannot be reached",
                  me, start.seconds, start.name),
      "waiting for all ranks to start MPI");
  if (initialized == 0) {
    send_at_once_over_tcp();
    int provided = 0;
    struct sigaction before {};
    ::sigaction(SIGUSR1, nullptr, &before);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    // Without mpirun MPICH handles it: the process would wait for ever for a launcher.
    ::sigaction(SIGUSR1, &before, nullptr);
    owns_mpi_ = true;
    if (provided < MPI_THREAD_SERIALIZED)
      throw CommError("the MPI library offers less than MPI_THREAD_SERIALIZED");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (MPI_Comm* comm : {&comm_, &control_}) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, comm), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  MPI_Comm local = MPI_COMM_NULL;
  check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local),
        "MPI_Comm_split_type");
  check(MPI_Comm_rank(local, &local_rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(local, &local_size_), "MPI_Comm_size");
  MPI_Comm_free(&local);
  int* limit = nullptr;
  int found = 0;
  if (MPI_Comm_get_attr(comm_, MPI_TAG_UB, &limit, &found) == MPI_SUCCESS && found != 0) tag_limit_ = *limit;
  let_process_live();
  collectives_.limits = {start, start};
}

// MPICH before 4.2 closes its connections and then waits outside MPI for the other ranks: over UCX's TCP, a
// rank whose last messages need an answer then spins for ever (https://github.com/pmodels/mpich/pull/6596).
// answer_peers() makes that rare. By then all ranks have done their work, so a rank that still spins after 3
// seconds exits, and a rank that sleeps exits after 6. This order matters: the launcher fails if it has to
// wake a rank that has exited.

std::atomic<bool> finalized{false};
std::atomic<int> exit_status{0};

void MpiTransport::answer_peers() const {
  Backoff backoff;
  for (const double until = now_seconds() + 0.1; now_seconds() < until; backoff.pause()) {
    int waiting = 0;
    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &waiting, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
  }
}

/// Processor seconds used by the thread of `clock`.
double seconds_used(clockid_t clock) {
  timespec used{};
  return ::clock_gettime(clock, &used) == 0
             ? static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9
             : 0;
}

void exit_unless_finalized(clockid_t clock) {
  double before = 0;
  for (int seconds = 0; !finalized; ++seconds) {
    const double now = seconds_used(clock);
    if (seconds >= (now - before > 0.05 ? 3 : 6)) {
      std::fflush(nullptr);
      ::_exit(exit_status);
    }
    before = now;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

MpiTransport::~MpiTransport() {
  const bool in_flight =
      std::any_of(operations_.begin(), operations_.end(), [](const Operation& o) { return o.in_flight(); });
  if (broken_ || in_flight || std::uncaught_exceptions() > exceptions_) return;
  // MPI_Finalize spins until all ranks have called it, so they wait here first: barrier() yields the core.
  try {
    const ScopedPhase end(*this, Phase::end);
    barrier();
  } catch (const std::exception& e) {
    await_turn(rank_);
    print_error(fmt::format("rank {}: {}", rank_, e.what()));
    abort(1);
    return;
  }
  const bool finalizes = owns_mpi_ && size_ > 1;
  if (finalizes) answer_peers();
  MPI_Comm_free(&comm_);
  MPI_Comm_free(&control_);
  clockid_t clock{};
  if (finalizes && ::pthread_getcpuclockid(::pthread_self(), &clock) == 0)
    std::thread(exit_unless_finalized, clock).detach();
  if (owns_mpi_) MPI_Finalize();
  finalized = true;
}

bool MpiTransport::takes_device_memory() const {
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40000000
  int supported = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) == MPI_SUCCESS && supported != 0;
#elif defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

Transport::Request MpiTransport::take() {
  const Request request = operations_.take();
  Operation& operation = operations_[request];
  operation.parts.clear();
  operation.expected.clear();
  operation.done = 0;
  return request;
}

void MpiTransport::reserve(std::size_t per_peer) {
  operations_.reserve((per_peer + 2) * static_cast<std::size_t>(size_));  // two of a collective
  for (Operation& operation : operations_) {
    operation.parts.reserve(1);
    operation.expected.reserve(1);
  }
}

Transport::Request MpiTransport::isend(std::span<const std::byte> bytes, int to, int tag) {
  const Channel at = channel(tag);
  if (at.comm == comm_) count_message(bytes.size());
  const Request request = take();
  for_parts(bytes.size(), largest_, [&](std::size_t offset, int n) {
    check(MPI_Isend(bytes.data() + offset, n, MPI_BYTE, to, at.tag, at.comm, add_part(request)), "MPI_Isend");
  });
  return request;
}

Transport::Request MpiTransport::irecv(std::span<std::byte> bytes, int from, int tag) {
  const Channel at = channel(tag);
  const Request request = take();
  operations_[request].from = from;
  operations_[request].tag = at.tag;
  for_parts(bytes.size(), largest_, [&](std::size_t offset, int n) {
    check(MPI_Irecv(bytes.data() + offset, n, MPI_BYTE, from, at.tag, at.comm, add_part(request, n)),
          "MPI_Irecv");
  });
  return request;
}

Transport::Request MpiTransport::iallreduce(std::span<float> values) {
  bytes_sent_ += ring_share(values.size_bytes());
  const Request request = take();
  for_parts(values.size(), largest_ / sizeof(float), [&](std::size_t at, int n) {
    check(MPI_Iallreduce(MPI_IN_PLACE, values.data() + at, n, MPI_FLOAT, MPI_SUM, comm_, add_part(request)),
          "MPI_Iallreduce");
  });
  return request;
}

bool MpiTransport::test(Request request) {
  require(request < operations_.size() && operations_[request].in_flight(),
          "a request that is not in flight");
  Operation& operation = operations_[request];
  while (operation.in_flight()) {
    int complete = 0;
    MPI_Status status;
    const int result = MPI_Test(&operation.parts[operation.done], &complete, &status);
    if (result == MPI_SUCCESS && complete == 0) return false;
    const std::ptrdiff_t expected = operation.expected[operation.done++];  // a failed part is complete, too
    const bool is_too_long = expected >= 0 && is_truncated(result);
    if (!is_too_long) check(result, "MPI_Test");
    if (expected < 0) continue;
    int received = 0;
    if (!is_too_long) check(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
    if (is_too_long || received != expected)
      throw CommError(fmt::format("a message from rank {} with tag {} has {} bytes, expected {}",
                                  operation.from, operation.tag,
                                  is_too_long ? "too many" : fmt::format("{}", received), expected));
  }
  operations_.give_back(request);
  return true;
}

}  // namespace

std::string start_timeout_mistake() {
  if (start_timeout()) return "";
  return fmt::format("LPSGD_START_TIMEOUT: expected seconds, got '{}'", std::getenv("LPSGD_START_TIMEOUT"));
}

void set_mpi_exit_status(int status) {
  exit_status = status;
}

std::unique_ptr<Transport> make_mpi_transport(std::size_t largest_message) {
  return std::make_unique<MpiTransport>(largest_message);
}

}  // namespace lpsgd
