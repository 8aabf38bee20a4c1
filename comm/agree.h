// Errors across ranks: an error that all ranks share is reported once, any other names its rank.
#pragma once

#include <functional>

#include "comm/transport.h"
#include "core/error.h"

namespace lpsgd {

/// An error that every rank throws at the same point: rank 0 prints it, all ranks end in order.
class SharedError : public Error {
 public:
  using Error::Error;
};

/// Runs `body` on every rank. If it threw on any rank, all ranks throw a SharedError with the messages of all
/// failed ranks, one per line (or one message without a rank, if all are the same), and the exit status of
/// the lowest. Collective, except that a CommError is rethrown at once.
void collective_try(Transport& transport, const std::function<void()>& body);

}  // namespace lpsgd
