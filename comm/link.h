// An emulated network link in front of a transport, so that slow interconnects can be studied on one machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/transport.h"
#include "core/config.h"

namespace lpsgd {

/// A rank's full-duplex link. Bytes leave through a token bucket as Linux's `tc tbf` shapes them: while the
/// bucket holds tokens they leave at once, then at `bandwidth`. Received messages pass an equal bucket.
struct LinkSpec {
  double bandwidth = 0;  // bits a second; 0: no link is emulated
  double latency = 0;    // seconds, one way
  double burst = 0;      // bytes the bucket holds; 0: the larger of 64 KiB and 2.1 ms at full bandwidth

  bool emulated() const { return bandwidth > 0 || latency > 0; }
  double burst_bytes() const;
};

/// Payload bytes grow by this factor on a link: Ethernet, IP and TCP headers (66 bytes with timestamps) in
/// front of every 1448 bytes at an MTU of 1500.
inline constexpr double link_overhead = 1514.0 / 1448.0;

/// Bytes that pass one at a time through a token bucket (the generic cell rate algorithm). Times are seconds
/// of any one clock.
class TokenBucket {
 public:
  /// `rate` bytes a second, `burst` bytes; rate 0 lets everything pass at once.
  TokenBucket(double rate, double burst) : rate_(rate), burst_(burst) {}
  /// When the last of `bytes` bytes that are offered at `now` has passed.
  double pass(double bytes, double now);
  /// How long `bytes` bytes take at the full rate.
  double transmission(double bytes) const { return rate_ > 0 ? bytes / rate_ : 0; }

 private:
  double rate_, burst_;
  double full_at_ = -1e300;  // when the bucket is full again
};

/// `inner` behind an emulated link: messages leave and arrive when the link would have carried them, an
/// all-reduce completes when a ring over such links would have. Blocking collectives, which no step uses,
/// pass through untouched. `inner` outlives the result. test() passes sends to `inner`, so a message leaves
/// only while its sender polls.
std::unique_ptr<Transport> make_linked_transport(Transport& inner, const LinkSpec& link);

/// Reads and writes `{bandwidth: 1Gbit, latency: 50us, burst: 256kB}` with tc's units (bit, kbit, Mbit, Gbit
/// a second; us, ms, s; B, kB, MB, powers of 1000).
void fields(config::Visitor& visitor, LinkSpec& link);
/// "1Gbit, 50us".
std::string to_text(const LinkSpec& link);

}  // namespace lpsgd
