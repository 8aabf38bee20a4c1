#include "comm/link.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <span>
#include <vector>

#include "comm/slots.h"
#include "comm/transport_over.h"
#include "core/clock.h"
#include "core/config_shape.h"
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

// In descending order.
struct UnitName {
  const char* name;
  double factor;
};
constexpr UnitName bandwidths[] = {{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}};
constexpr UnitName times[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}};
constexpr UnitName sizes[] = {{"MB", 1e6}, {"kB", 1e3}, {"B", 1}};

/// A number that is not negative, followed by one of the units.
double parse_quantity(const config::Value& value, const std::string& path, std::span<const UnitName> units,
                      const char* example) {
  const std::string& text = value.scalar;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (value.is_scalar() && error == std::errc() && number >= 0 && number <= 1e15) {
    std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    for (const UnitName& unit : units)
      if (rest == unit.name) return number * unit.factor;
  }
  std::vector<std::string> names;
  for (const UnitName& unit : units) names.emplace_back(unit.name);
  config::fail(
      value.origin, path,
      fmt::format("expected a number and a unit, such as {}; units: {}", example, fmt::join(names, ", ")));
}

config::Shape quantity_shape(std::span<const UnitName> units) {
  std::string names;
  for (const UnitName& unit : units) names += fmt::format("{}{}", names.empty() ? "" : "|", unit.name);
  return config::Shape::text(fmt::format("^[0-9.]+(e[+-]?[0-9]+)? *({})$", names));
}

/// In the largest unit that leaves at least 1.
config::Value write_quantity(double value, std::span<const UnitName> units) {
  auto unit = std::find_if(units.begin(), units.end(), [&](const UnitName& u) { return value >= u.factor; });
  if (unit == units.end()) unit = std::prev(units.end());
  return config::Value::plain(fmt::format("{:.9g}{}", value / unit->factor, unit->name));
}

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
  const auto quantity = [&](const char* key, double& value, const char* help, std::span<const UnitName> units,
                            const char* example) {
    const std::string type = fmt::format("number with a unit, such as {}", example);
    v.shape([units] { return quantity_shape(units); });
    v.custom(
        key, type.c_str(), help,
        [&value, units, example](const config::Value& given, const std::string& path) {
          value = parse_quantity(given, path, units, example);
        },
        [&value, units] { return value > 0 ? write_quantity(value, units) : config::Value(); });
  };
  quantity("bandwidth", link.bandwidth,
           "bits per second in each direction of a rank's link; none: as fast as the transport is",
           bandwidths, "1Gbit");
  quantity("latency", link.latency, "the time a message spends on the link, one way; none: no extra time",
           times, "50us");
  quantity(
      "burst", link.burst,
      "bytes that may leave at full speed after a pause; none: as many as Linux's token bucket filter needs",
      sizes, "256kB");
}

std::string to_text(const LinkSpec& link) {
  std::string text;
  if (link.bandwidth > 0) text = write_quantity(link.bandwidth, bandwidths).scalar;
  if (link.latency > 0) text += (text.empty() ? "" : ", ") + write_quantity(link.latency, times).scalar;
  return text;
}

std::unique_ptr<Transport> make_linked_transport(Transport& inner, const LinkSpec& link) {
  return std::make_unique<LinkedTransport>(inner, link);
}

}  // namespace lpsgd
