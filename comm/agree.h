// Errors on several ranks: one message for an error that all ranks share, the right rank's name for one that
// they do not.
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

/// Runs `body` on every rank and then compares notes: when it threw on any rank, all ranks throw a
/// SharedError with the message of every rank that failed, a line each (or one message without a rank, where
/// all say the same), and the status of the lowest of them. Collective, but for a CommError, which is thrown
/// on at once.
void collective_try(Transport& transport, const std::function<void()>& body);

}  // namespace lpsgd
