#include "tests/comm/fake_device.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/buffer.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/philox.h"

namespace lpsgd {
namespace {

constexpr std::size_t queues = 5;

/// Counts its graphs, and those that were reached.
struct FakeEvent final : DeviceEvent {
  explicit FakeEvent(bool is_timed) : timed(is_timed) {}
  const bool timed;
  struct State {
    std::mutex mutex;
    std::condition_variable reached;
    std::uint64_t recorded = 0, passed = 0;
    double when = 0;
  };
  std::shared_ptr<State> state = std::make_shared<State>();  // what is queued outlives the event
};

const FakeEvent& fake(const DeviceEvent& event) {
  return dynamic_cast<const FakeEvent&>(event);
}

void wait_for(FakeEvent::State& state, std::uint64_t graph) {
  std::unique_lock lock(state.mutex);
  state.reached.wait(lock, [&] { return state.passed >= graph; });
}

std::uint64_t newest(const DeviceEvent& event) {
  const std::lock_guard lock(fake(event).state->mutex);
  return fake(event).state->recorded;
}

class Worker {
 public:
  explicit Worker(std::uint32_t seed, std::uint32_t queue)
      : delays_(seed, RandomUse::dataset, queue), delayed_(seed != 0), thread_([this] { serve(); }) {}
  ~Worker() {
    push({});
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    wake_.notify_one();
  }
  void rethrow_failure() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void serve() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.pop_front();
      }
      if (!work) return;
      if (delayed_) {
        if (const std::uint32_t late = delays_.below(8); late < 2)
          std::this_thread::sleep_for(std::chrono::microseconds(late == 0 ? 300 : 30));
      }
      try {
        work();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  PhiloxSequence delays_;
  const bool delayed_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace

struct FakeDevice::Impl {
  std::uint32_t step = 0;  // as work on the queues sees it
  std::vector<Buffer<std::byte>> memory;
  std::array<std::unique_ptr<Worker>, queues> workers;
};

FakeDevice::FakeDevice(std::uint32_t seed) : impl_(std::make_unique<Impl>()) {
  for (std::uint32_t q = 0; q < queues; ++q) impl_->workers[q] = std::make_unique<Worker>(seed, q);
}

FakeDevice::~FakeDevice() {
  for (auto& worker : impl_->workers) worker.reset();
}

std::byte* FakeDevice::device_memory(std::size_t bytes) {
  return impl_->memory.emplace_back(bytes).data();
}
std::byte* FakeDevice::host_memory(std::size_t bytes) {
  return device_memory(bytes);
}
std::unique_ptr<DeviceEvent> FakeDevice::make_event(bool timed) {
  return std::make_unique<FakeEvent>(timed);
}
void FakeDevice::run(Queue queue, std::function<void()> work) {
  Worker& worker = *impl_->workers[static_cast<std::size_t>(queue)];
  worker.rethrow_failure();
  worker.push(std::move(work));
}
void FakeDevice::drain(Queue queue) {
  FakeEvent event(false);
  record(event, queue);
  synchronize(event);
  impl_->workers[static_cast<std::size_t>(queue)]->rethrow_failure();
}

void FakeDevice::record(DeviceEvent& event, Queue queue) {
  const auto state = fake(event).state;
  std::uint64_t graph = 0;
  {
    const std::lock_guard lock(state->mutex);
    graph = ++state->recorded;
  }
  run(queue, [state, graph] {
    const std::lock_guard lock(state->mutex);
    state->passed = graph;
    state->when = now_seconds();
    state->reached.notify_all();
  });
}
void FakeDevice::wait(Queue queue, const DeviceEvent& event) {
  run(queue, [state = fake(event).state, graph = newest(event)] { wait_for(*state, graph); });
}
bool FakeDevice::done(const DeviceEvent& event) {
  const std::lock_guard lock(fake(event).state->mutex);
  return fake(event).state->passed == fake(event).state->recorded;
}
void FakeDevice::synchronize(const DeviceEvent& event) {
  wait_for(*fake(event).state, newest(event));
}
double FakeDevice::seconds(const DeviceEvent& from, const DeviceEvent& to) {
  require(fake(from).timed && fake(to).timed && done(from) && done(to) && newest(from) > 0 && newest(to) > 0,
          "seconds between events that are not timed and done");
  return fake(to).state->when - fake(from).state->when;
}
void FakeDevice::copy(void* to, const void* from, std::size_t bytes, Queue queue) {
  run(queue, [=] { std::memcpy(to, from, bytes); });
}
void FakeDevice::zero(void* to, std::size_t bytes, Queue queue) {
  run(queue, [=] { std::memset(to, 0, bytes); });
}
void FakeDevice::set_step(std::uint32_t step) {
  run(Queue::compute, [this, step] { impl_->step = step; });
}
const std::uint32_t& FakeDevice::step() const {
  return impl_->step;
}
void FakeDevice::transpose(std::span<const Transposition> jobs) {
  run(Queue::codec, [work = std::vector(jobs.begin(), jobs.end())] {
    for (const Transposition& t : work)
      for (std::int64_t o = 0; o < t.outer; ++o)
        for (std::int64_t r = 0; r < t.rows; ++r)
          for (std::int64_t c = 0; c < t.columns; ++c)
            t.to[(o * t.columns + c) * t.rows + r] = t.from[(o * t.rows + r) * t.columns + c];
  });
}

namespace {

/// The jobs with copies of their contributions' addresses.
struct Jobs {
  explicit Jobs(std::vector<CodingJob> given) : all(std::move(given)) {
    for (CodingJob& job : all) {
      const auto& copy = contributions.emplace_back(job.contributions, job.contributions + job.ranks);
      job.contributions = copy.data();
    }
  }
  std::vector<CodingJob> all;
  std::deque<std::vector<const std::byte*>> contributions;
};

class FakeBatch final : public JobBatch {
 public:
  FakeBatch(FakeDevice& device, const CodecSpec& spec, std::vector<CodingJob> jobs)
      : device_(device), spec_(spec), jobs_(std::make_shared<const Jobs>(std::move(jobs))) {}

  void encode(const CodingContext& context) override {
    queue([this_step = &device_.step(), spec = spec_, jobs = jobs_, context] {
      require(*this_step == context.step, "the device codes another step");
      std::vector<std::vector<std::byte>> tables;
      std::vector<std::uint32_t> tabled;
      for (CodingJob job : jobs->all) {
        const Codec codec(spec, job.bucket);
        if (codec.table_bytes() > 0) {
          auto known = std::find(tabled.begin(), tabled.end(), job.tensor) - tabled.begin();
          if (known == static_cast<std::ptrdiff_t>(tabled.size())) {
            tabled.push_back(job.tensor);
            tables.push_back(table_of(codec, jobs->all, job.tensor));
          }
          job.table = tables[static_cast<std::size_t>(known)].data();
        }
        const std::vector<float> before =
            job.error ? std::vector<float>(job.values, job.values + job.n) : std::vector<float>();
        if (!codec.encode(job, context)) *job.non_finite = 1;
        if (job.error) add_error(codec, job, before);
      }
    });
  }
  void reduce(const CodingContext& context) override {
    queue([this_step = &device_.step(), spec = spec_, jobs = jobs_, context] {
      require(*this_step == context.step, "the device codes another step");
      for (const CodingJob& job : jobs->all) Codec(spec, job.bucket).reduce(job, context);
    });
  }
  void decode(std::size_t first, std::size_t last, float weight) override {
    queue([spec = spec_, jobs = jobs_, first, last, weight] {
      for (std::size_t j = first; j < last; ++j) {
        const CodingJob& job = jobs->all[j];
        if (!Codec(spec, job.bucket).decode(job)) *job.non_finite = 1;
        if (weight != 1.0f)
          for (std::int64_t i = 0; i < job.n; ++i) job.out[i] *= weight;
      }
    });
  }
  void check() override {
    queue([jobs = jobs_] {
      for (const CodingJob& job : jobs->all)
        for (std::int64_t i = 0; i < job.n; ++i)
          if (!(job.out[i] - job.out[i] == 0.0f)) *job.non_finite = 1;
    });
  }

 private:
  void queue(std::function<void()> work) { device_.run(CodingDevice::Queue::codec, std::move(work)); }

  /// Of a tensor whose runs are all there: the lowest one says where it begins.
  static std::vector<std::byte> table_of(const Codec& codec, const std::vector<CodingJob>& jobs,
                                         std::uint32_t tensor) {
    CodingJob whole;
    std::int64_t n = 0;
    for (const CodingJob& job : jobs)
      if (job.tensor == tensor) {
        n += job.n;
        if (whole.values == nullptr || job.first < whole.first) whole = job;
      }
    whole.n = n;
    std::vector<std::byte> table(codec.table_bytes());
    codec.make_table(whole, table.data());
    return table;
  }
  static void add_error(const Codec& codec, CodingJob job, const std::vector<float>& values) {
    std::vector<float> decoded(values.size());
    job.out = decoded.data();
    codec.decode(job);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto lost = static_cast<double>(job.residual ? job.residual[i] : values[i] - decoded[i]);
      job.error[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      job.error[1] += lost * lost;
    }
  }

  FakeDevice& device_;
  const CodecSpec spec_;
  const std::shared_ptr<const Jobs> jobs_;
};

class OrderedTransport final : public Transport {
 public:
  OrderedTransport(Transport& inner, FakeDevice& device) : inner_(inner), device_(device) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const char* name() const override { return "ordered"; }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  bool takes_device_memory() const override { return true; }
  bool ordered() const override { return true; }
  void begin_group() override { group_.clear(); }
  void end_group() override {
    for (auto a = group_.begin(); a != group_.end(); ++a)
      for (auto b = std::next(a); b != group_.end(); ++b)
        require(a->peer != b->peer || a->sends != b->sends, "two messages of a group in one direction");
    device_.run(CodingDevice::Queue::transport, [this, group = group_] {
      std::vector<Request> requests;
      for (const Message& m : group)
        requests.push_back(m.sends ? inner_.isend(m.from, m.peer, 0) : inner_.irecv(m.to, m.peer, 0));
      inner_.wait(requests);
    });
  }
  Request isend(std::span<const std::byte> bytes, int to, int) override {
    bytes_sent_ += bytes.size();
    group_.push_back({true, to, bytes, {}});
    return 0;
  }
  Request irecv(std::span<std::byte> bytes, int from, int) override {
    group_.push_back({false, from, {}, bytes});
    return 0;
  }
  Request iallreduce(std::span<float> values) override {
    bytes_sent_ += ring_share(values.size_bytes());
    device_.run(CodingDevice::Queue::transport, [this, values] {
      const Request request = inner_.iallreduce(values);
      inner_.wait({&request, 1});
    });
    return 0;
  }
  bool test(Request) override { return true; }

  void barrier() override { inner().barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { inner().broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    inner().all_gather(mine, all);
  }
  using Transport::all_gather;
  void abort(int status) noexcept override { inner_.abort(status); }
  void cancel() noexcept override { inner_.abort(1); }

 private:
  struct Message {
    bool sends;
    int peer;
    std::span<const std::byte> from;
    std::span<std::byte> to;
  };
  /// For one thread at a time.
  Transport& inner() {
    device_.drain(CodingDevice::Queue::transport);
    return inner_;
  }
  Transport& inner_;
  FakeDevice& device_;
  std::vector<Message> group_;
};

}  // namespace

std::unique_ptr<JobBatch> FakeDevice::make_batch(const CodecSpec& codec, std::vector<CodingJob> jobs) {
  return std::make_unique<FakeBatch>(*this, codec, std::move(jobs));
}

std::unique_ptr<Transport> make_ordered_transport(Transport& inner, FakeDevice& device) {
  return std::make_unique<OrderedTransport>(inner, device);
}

}  // namespace lpsgd
