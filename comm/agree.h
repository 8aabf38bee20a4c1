// Agreement across ranks: an error that all ranks share is reported once, any other names its rank; and what
// must be the same on all ranks is compared.
#pragma once

#include <functional>
#include <string>
#include <vector>

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
void collective_try(Transport& transport, const std::function<void()>& body,
                    Place at = std::source_location::current());

/// Something that must be the same on all ranks, such as a key of the configuration.
struct Fact {
  std::string name, value;
};

/// Throws a SharedError with status 2 unless all ranks have the same facts. The message names the first that
/// differs, its values (short ones only) and their ranks, and the names of a few others. Collective. Facts
/// that are the same cost one message of a few bytes.
void require_agreement(Transport& transport, const std::vector<Fact>& facts,
                       Place at = std::source_location::current());

}  // namespace lpsgd
