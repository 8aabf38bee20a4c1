#include "core/json.h"

#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "core/printable.h"

namespace lpsgd {

namespace {

/// Looks at a text without building anything. (The library's parser with a callback does so while it builds,
/// but at each value's end it walks through all that the array or object around it holds so far.)
template <class Json>
class Watch final : public Json::json_sax_t {
 public:
  Watch(const std::string& source, const JsonBounds& bounds, std::size_t bytes)
      : source_(source), bounds_(bounds), bytes_(bytes) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(typename Json::number_integer_t) override { return value(); }
  bool number_unsigned(typename Json::number_unsigned_t) override { return value(); }
  bool number_float(typename Json::number_float_t, const std::string&) override { return value(); }
  bool string(std::string&) override { return value(); }
  bool binary(typename Json::binary_t&) override { return value(); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return descend();
  }
  bool end_object() override {
    keys_.pop_back();
    return ascend();
  }
  bool start_array(std::size_t) override { return descend(); }
  bool end_array() override { return ascend(); }

  bool key(std::string& key) override {
    if (!keys_.back().insert(key).second) refuse(fmt::format("duplicate key '{}'", printable(key)));
    if (keys_.back().size() > bounds_.object_keys)
      refuse(fmt::format("an object of more than {} keys", bounds_.object_keys));
    return value();
  }

  bool parse_error(std::size_t position, const std::string&, const typename Json::exception& e) override {
    constexpr int too_large_number = 406;  // for a double
    refuse(e.id == too_large_number ? "not JSON that can be read"
                                    : fmt::format("not JSON: wrong at byte {} of {}", position, bytes_));
    return false;
  }

 private:
  bool value() {
    if (++values_ > bounds_.values) refuse(fmt::format("more than {} values", bounds_.values));
    return true;
  }
  bool descend() {
    if (++depth_ > bounds_.depth)
      refuse(fmt::format("nested too deeply: more than {} levels", bounds_.depth));
    return value();
  }
  bool ascend() {
    --depth_;
    return true;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", source_, what));
  }

  const std::string& source_;
  const JsonBounds& bounds_;
  const std::size_t bytes_;
  int depth_ = 0;
  std::size_t values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& source, const JsonBounds& bounds) {
  Watch<Json> watch(source, bounds, text.size());
  Json::sax_parse(text, &watch);
  return Json::parse(text);
}

template <class Json>
std::int64_t whole_number(const Json& number, const std::string& source, std::uint64_t max) {
  if (!number.is_number_unsigned() || number.template get<std::uint64_t>() > max) {
    constexpr std::size_t shown = 40;
    throw FileError(fmt::format("{}: {:.{}} is an impossible number", source, number.dump(), shown));
  }
  return number.template get<std::int64_t>();
}

template std::int64_t whole_number(const nlohmann::json&, const std::string&, std::uint64_t);
template std::int64_t whole_number(const nlohmann::ordered_json&, const std::string&, std::uint64_t);

template nlohmann::json parse_json(std::string_view, const std::string&, const JsonBounds&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&, const JsonBounds&);

}  // namespace lpsgd
