// Base of transports that wrap another one: calls that they do not override are forwarded to it.
#pragma once

#include <string>

#include "comm/transport.h"

namespace lpsgd {

/// Ranks, and the collectives outside the step, are the inner transport's, which outlives this one.
class TransportOver : public Transport {
 public:
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const char* name() const override { return inner_.name(); }
  int rank_in_run(int rank) const override { return inner_.rank_in_run(rank); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  bool takes_device_memory() const override { return inner_.takes_device_memory(); }

  Collectives& collectives() override { return inner_.collectives(); }
  void throw_if_failed() override { inner_.throw_if_failed(); }
  void abort(int status) noexcept override { inner_.abort(status); }
  void cancel() noexcept override { inner_.cancel(); }
  void timed_out(const std::string& message) noexcept override { inner_.timed_out(message); }

 protected:
  explicit TransportOver(Transport& inner) : inner_(inner) {}
  Transport& inner_;
};

}  // namespace lpsgd
