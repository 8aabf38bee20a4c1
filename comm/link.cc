#include "comm/link.h"

#include <algorithm>
#include <vector>

#include "comm/slots.h"
#include "comm/transport_over.h"
#include "core/clock.h"
#include "core/config_quantity.h"
#include "core/error.h"

namespace lpsgd {
namespace {

class LinkedTransport final : public TransportOver {
 public:
  LinkedTransport(Transport& inner, const LinkSpec& link)
      : TransportOver(inner),
        latency_(link.latency),
        out_(link.bandwidth / 8, link.burst_bytes()),
        in_(link.bandwidth / 8, link.burst_bytes()) {}

  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    count_message(bytes.size());
    const Request request = take({.state = State::queued, .bytes = bytes, .peer = to, .tag = tag});
    Operation& operation = operations_[request];
    operation.due = out_.pass(wire_bytes(bytes.size()), now_seconds()) + latency_;
    queue_.push_back(request);
    return request;
  }

  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    const Request request = take({.state = State::receiving, .bytes = bytes});
    operations_[request].inner = inner_.irecv(bytes, from, tag);
    return request;
  }

  // A ring moves each rank's share out and in alike, in 2(K-1) hops.
  Request iallreduce(std::span<float> values) override {
    const std::uint64_t share = ring_share(values.size_bytes());
    bytes_sent_ += share;
    const Request request = take({.state = State::reducing});
    Operation& operation = operations_[request];
    operation.inner = inner_.iallreduce(values);
    operation.due = out_.pass(wire_bytes(share), now_seconds()) + 2 * (size() - 1) * latency_;
    return request;
  }

  bool test(Request request) override {
    require(request < operations_.size() && operations_[request].state != State::free,
            "a request that is not in flight");
    const double now = now_seconds();
    send_due(now);
    Operation& operation = operations_[request];
    switch (operation.state) {
      case State::queued:
        return false;
      case State::receiving:
        if (!inner_.test(operation.inner)) return false;
        // Only messages that arrive at the same time delay each other on the receiver's link. With a single
        // sender, its own link has delayed them already; doing it again would add the time since the last
        // poll.
        operation.due = size() == 2 ? now
                                    : in_.pass(wire_bytes(operation.bytes.size()),
                                               now - in_.transmission(wire_bytes(operation.bytes.size())));
        operation.state = State::arriving;
        [[fallthrough]];
      case State::arriving:
        if (now < operation.due) return false;
        break;
      case State::reducing:
        if (now < operation.due || !inner_.test(operation.inner)) return false;
        break;
      default:
        if (!inner_.test(operation.inner)) return false;
    }
    operation.state = State::free;
    operations_.give_back(request);
    return true;
  }

  void reserve(std::size_t per_peer) override {
    inner_.reserve(per_peer);
    const std::size_t messages = per_peer * static_cast<std::size_t>(size());
    operations_.reserve(messages);
    queue_.reserve(messages);
  }

 private:
  enum class State : std::uint8_t { free, queued, sending, receiving, arriving, reducing };
  struct Operation {
    State state = State::free;
    std::span<const std::byte> bytes = {};
    int peer = 0, tag = 0;
    double due = 0;  // queued: when the last byte reaches the other side; arriving, reducing: when it is here
    Request inner = 0;
  };

  static double wire_bytes(std::uint64_t payload) { return static_cast<double>(payload) * link_overhead; }

  Request take(const Operation& operation) {
    const Request request = operations_.take();
    operations_[request] = operation;
    return request;
  }

  /// Gives the messages that have crossed the link to the transport, in the order sent.
  void send_due(double now) {
    auto next = queue_.begin();
    for (; next != queue_.end() && operations_[*next].due <= now; ++next) {
      Operation& operation = operations_[*next];
      operation.inner = inner_.isend(operation.bytes, operation.peer, operation.tag);
      operation.state = State::sending;
    }
    queue_.erase(queue_.begin(), next);
  }

  const double latency_;
  TokenBucket out_, in_;
  Slots<Operation> operations_;
  std::vector<Request> queue_;  // sends that are still on the link, in order
};

constexpr config::Unit bandwidths[] = {{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}};
constexpr config::Unit times[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}};
constexpr config::Unit sizes[] = {{"MB", 1e6}, {"kB", 1e3}, {"B", 1}};

}  // namespace

double LinkSpec::burst_bytes() const {
  return burst > 0 ? burst : std::max(65536.0, bandwidth / 8 * 2.1e-3);
}

double TokenBucket::pass(double bytes, double now) {
  if (rate_ <= 0) return now;
  full_at_ = std::max(full_at_, now) + bytes / rate_;
  return std::max(now, full_at_ - burst_ / rate_);
}

void fields(config::Visitor& v, LinkSpec& link) {
  quantity(v, "bandwidth", link.bandwidth,
           "bits per second in each direction of a rank's link; none: as fast as the transport is",
           bandwidths, "1Gbit", true);
  quantity(v, "latency", link.latency, "the time a message spends on the link, one way; none: no extra time",
           times, "50us", true);
  quantity(
      v, "burst", link.burst,
      "bytes that may leave at full speed after a pause; none: as many as Linux's token bucket filter needs",
      sizes, "256kB", true);
}

std::string to_text(const LinkSpec& link) {
  std::string text;
  if (link.bandwidth > 0) text = config::quantity_text(link.bandwidth, bandwidths);
  if (link.latency > 0) text += (text.empty() ? "" : ", ") + config::quantity_text(link.latency, times);
  return text;
}

std::unique_ptr<Transport> make_linked_transport(Transport& inner, const LinkSpec& link) {
  return std::make_unique<LinkedTransport>(inner, link);
}

}  // namespace lpsgd
