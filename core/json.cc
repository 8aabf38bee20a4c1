#include "core/json.h"

#include <functional>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "core/printable.h"

namespace lpsgd {

namespace {

/// Called by the parser for each value, before it descends.
template <class Json>
class Watch {
 public:
  Watch(const std::string& source, const JsonBounds& bounds) : source_(source), bounds_(bounds) {}

  bool operator()(int depth, typename Json::parse_event_t event, const Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) begin(depth, event);
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) add_key(parsed.template get_ref<const std::string&>());
    if ((event == Event::key || event == Event::value) && ++values_ > bounds_.values)
      refuse(fmt::format("more than {} values", bounds_.values));
    return true;
  }

 private:
  void begin(int depth, typename Json::parse_event_t event) {
    if (depth >= bounds_.depth) refuse(fmt::format("nested too deeply: more than {} levels", bounds_.depth));
    if (++values_ > bounds_.values) refuse(fmt::format("more than {} values", bounds_.values));
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
  }

  void add_key(const std::string& key) {
    if (!keys_.back().insert(key).second) refuse(fmt::format("duplicate key '{}'", printable(key)));
    if (keys_.back().size() > bounds_.object_keys)
      refuse(fmt::format("an object of more than {} keys", bounds_.object_keys));
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", source_, what));
  }

  const std::string& source_;
  const JsonBounds& bounds_;
  std::size_t values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& source, const JsonBounds& bounds) {
  Watch<Json> watch(source, bounds);
  try {
    return Json::parse(text, std::ref(watch));
  } catch (const typename Json::parse_error& e) {
    throw FileError(fmt::format("{}: not JSON: wrong at byte {} of {}", source, e.byte, text.size()));
  } catch (const typename Json::exception&) {  // a number that no double can hold
    throw FileError(fmt::format("{}: not JSON that can be read", source));
  }
}

template nlohmann::json parse_json(std::string_view, const std::string&, const JsonBounds&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&, const JsonBounds&);

}  // namespace lpsgd
