#include "trainer/seconds.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace lpsgd {

using nlohmann::ordered_json;

Seconds& Seconds::operator+=(const Seconds& more) {
  for (const SecondsField& f : seconds_fields) this->*f.value += more.*f.value;
  return *this;
}

SecondsOfRanks& SecondsOfRanks::operator+=(const SecondsOfRanks& more) {
  mean += more.mean;
  min += more.min;
  max += more.max;
  return *this;
}

SecondsOfRanks over_ranks(Transport& transport, const Seconds& mine) {
  const std::vector<Seconds> all = transport.all_gather(mine);
  SecondsOfRanks out{{}, all[0], all[0]};
  for (const Seconds& one : all) {
    out.mean += one;
    for (const SecondsField& f : seconds_fields) {
      out.min.*f.value = std::min(out.min.*f.value, one.*f.value);
      out.max.*f.value = std::max(out.max.*f.value, one.*f.value);
    }
  }
  for (const SecondsField& f : seconds_fields) out.mean.*f.value /= static_cast<double>(all.size());
  return out;
}

void to_json(ordered_json& json, const Seconds& seconds) {
  json = ordered_json::object();
  for (const SecondsField& f : seconds_fields) json[f.name] = seconds.*f.value;
}

void from_json(const ordered_json& json, Seconds& seconds) {
  for (const SecondsField& f : seconds_fields) json.at(f.name).get_to(seconds.*f.value);
}

void to_json(ordered_json& json, const SecondsOfRanks& seconds) {
  json = {{"mean", seconds.mean}, {"min", seconds.min}, {"max", seconds.max}};
}

void from_json(const ordered_json& json, SecondsOfRanks& seconds) {
  json.at("mean").get_to(seconds.mean);
  json.at("min").get_to(seconds.min);
  json.at("max").get_to(seconds.max);
}

}  // namespace lpsgd
