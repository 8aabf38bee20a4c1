// The seconds of an epoch: the parts on one rank, and their mean, minimum and maximum over ranks.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>

#include "comm/transport.h"

namespace lpsgd {

/// One rank's seconds in one epoch. A field that is added here is also added to `seconds_fields` below;
/// everything else follows from that list.
struct Seconds {
  double total = 0;
  double data = 0, forward = 0, backward = 0;
  double encode = 0, transfer = 0, decode = 0;  // of the communication thread; not part of the total
  double exposed_comm = 0;                      // the step waited for the exchange after backward ended
  double exposed_codec = 0;                     // of that, while the exchange encoded or decoded
  double update = 0, eval = 0;

  Seconds& operator+=(const Seconds& more);
  /// The main thread's time outside all fields, such as starting an epoch.
  double other() const { return total - data - forward - backward - exposed_comm - update - eval; }
  double communication() const { return exposed_comm - exposed_codec; }
  /// The paper's split (EDBT 2018, section 4): computation includes encoding and decoding.
  double computation() const { return total - eval - other() - communication(); }
};

/// A field of Seconds and its key in JSON.
struct SecondsField {
  const char* name;
  double Seconds::*value;
};
inline constexpr std::array seconds_fields{
    SecondsField{"total", &Seconds::total},
    SecondsField{"data", &Seconds::data},
    SecondsField{"forward", &Seconds::forward},
    SecondsField{"backward", &Seconds::backward},
    SecondsField{"encode", &Seconds::encode},
    SecondsField{"transfer", &Seconds::transfer},
    SecondsField{"decode", &Seconds::decode},
    SecondsField{"exposed_comm", &Seconds::exposed_comm},
    SecondsField{"exposed_codec", &Seconds::exposed_codec},
    SecondsField{"update", &Seconds::update},
    SecondsField{"eval", &Seconds::eval},
};
static_assert(sizeof(Seconds) == seconds_fields.size() * sizeof(double), "a field is missing in the list");

/// One epoch's seconds over ranks. After a resume within the epoch, min and max are sums over its parts.
struct SecondsOfRanks {
  Seconds mean, min, max;

  SecondsOfRanks& operator+=(const SecondsOfRanks& more);
};

/// Collective.
SecondsOfRanks over_ranks(Transport& transport, const Seconds& mine);

// For nlohmann's conversions. Reading throws its exceptions where a field is missing or no number.
void to_json(nlohmann::ordered_json& json, const Seconds& seconds);
void from_json(const nlohmann::ordered_json& json, Seconds& seconds);
void to_json(nlohmann::ordered_json& json, const SecondsOfRanks& seconds);
void from_json(const nlohmann::ordered_json& json, SecondsOfRanks& seconds);

}  // namespace lpsgd
