#include "nn/expression.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"

namespace lpsgd {

const config::Value* ParameterScope::find(const std::string& name) const {
  const auto it = values_.find(name);
  if (it != values_.end()) return &it->second;
  return outer_ ? outer_->find(name) : nullptr;
}

std::vector<std::string> ParameterScope::names() const {
  std::vector<std::string> out;
  for (const auto& entry : values_) out.push_back(entry.first);
  if (outer_)
    for (std::string& name : outer_->names()) out.push_back(std::move(name));
  return out;
}

namespace {

using Result = std::variant<std::int64_t, bool, std::string>;

constexpr std::size_t max_expression_length = 256;  // characters; bounds the recursion, too

class Evaluator {
 public:
  Evaluator(const std::string& text, const ParameterScope& scope, const config::Origin& origin,
            const std::string& path)
      : text_(text), scope_(scope), origin_(origin), path_(path) {
    if (text.size() > max_expression_length)
      fail(fmt::format("is longer than {} characters", max_expression_length));
  }

  Result run() {
    Result r = choice();
    skip();
    if (at_ != text_.size()) fail(fmt::format("'{}' is not understood", text_.substr(at_)));
    return r;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    config::fail(origin_, path_, fmt::format("in '{}': {}", text_, what));
  }

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  static bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  bool take(std::string_view token) {
    skip();
    if (text_.compare(at_, token.size(), token) != 0) return false;
    const std::size_t end = at_ + token.size();
    if (in_word(token.back()) && end < text_.size() && in_word(text_[end])) return false;
    at_ = end;
    return true;
  }

  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && in_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool is_digit(std::size_t at) const {
    return at < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at]));
  }
  /// A word, or an integer, or a decimal number such as 0.5 and 1e-3.
  std::string literal() {
    const std::size_t begin = at_;
    std::string w = word();
    if (!is_digit(begin)) return w;
    if (w.find_first_not_of("0123456789") == std::string::npos && is_digit(at_ + 1) && text_[at_] == '.') {
      ++at_;
      w += '.' + word();
    }
    if ((w.back() == 'e' || w.back() == 'E') && is_digit(at_ + 1) &&
        (text_[at_] == '-' || text_[at_] == '+')) {
      w += text_[at_++];
      w += word();
    }
    return w;
  }

  std::int64_t integer(const Result& r) const {
    if (const auto* x = std::get_if<std::int64_t>(&r)) return *x;
    if (unused_ > 0) return 1;
    fail(fmt::format("'{}' is not an integer", show(r)));
  }
  bool truth(const Result& r) const {
    if (const auto* x = std::get_if<bool>(&r)) return *x;
    if (unused_ > 0) return false;
    fail(fmt::format("'{}' is neither true nor false", show(r)));
  }

  Result choice() {
    const std::size_t begin = at_;
    unused([&] { disjunction(); });  // whether its value is needed is said behind it
    if (take("if")) {
      const bool is_chosen = truth(disjunction());
      if (!take("else")) fail("'else' is missing");
      if (!is_chosen) return choice();
      unused([&] { choice(); });
    }
    if (unused_ > 0) return {};
    const std::size_t end = std::exchange(at_, begin);
    Result chosen = disjunction();
    at_ = end;
    return chosen;
  }
  /// Reads a part whose value is not needed: numbers in it may be impossible.
  template <class Part>
  void unused(const Part& part) {
    ++unused_;
    part();
    --unused_;
  }
  Result disjunction() {
    Result a = conjunction();
    while (take("or")) {
      if (truth(a))
        unused([&] { conjunction(); });
      else
        a = truth(conjunction());
    }
    return a;
  }
  Result conjunction() {
    Result a = negation();
    while (take("and")) {
      if (!truth(a))
        unused([&] { negation(); });
      else
        a = truth(negation());
    }
    return a;
  }
  Result negation() {
    if (take("not")) return !truth(negation());
    return comparison();
  }
  /// Of an integer or a decimal number.
  static std::optional<double> number(const Result& r) {
    if (const auto* x = std::get_if<std::int64_t>(&r)) return static_cast<double>(*x);
    const auto* w = std::get_if<std::string>(&r);
    double x = 0;
    if (!w || w->empty()) return std::nullopt;
    const auto [end, error] = std::from_chars(w->data(), w->data() + w->size(), x);
    return error == std::errc{} && end == w->data() + w->size() ? std::optional(x) : std::nullopt;
  }
  static bool same(const Result& a, const Result& b) {
    if (std::holds_alternative<std::int64_t>(a) && std::holds_alternative<std::int64_t>(b)) return a == b;
    const std::optional<double> x = number(a), y = number(b);
    return x && y ? *x == *y : a == b;
  }
  Result comparison() {
    Result a = sum();
    if (take("==")) return same(a, sum());
    if (take("!=")) return !same(a, sum());
    if (take("<=")) return integer(a) <= integer(sum());
    if (take(">=")) return integer(a) >= integer(sum());
    if (take("<")) return integer(a) < integer(sum());
    if (take(">")) return integer(a) > integer(sum());
    return a;
  }
  Result sum() {
    Result a = product();
    while (true) {
      const bool plus = take("+");
      if (!plus && !take("-")) return a;
      const std::int64_t x = integer(a);
      const std::int64_t y = integer(product());
      std::int64_t z = 0;
      if ((plus ? __builtin_add_overflow(x, y, &z) : __builtin_sub_overflow(x, y, &z)) && unused_ == 0)
        fail("overflows");
      a = z;
    }
  }
  Result product() {
    Result a = factor();
    while (true) {
      skip();
      if (at_ == text_.size() || std::string_view("*/%").find(text_[at_]) == std::string_view::npos) return a;
      const char op = text_[at_++];
      const std::int64_t x = integer(a);
      const std::int64_t y = integer(factor());
      std::int64_t z = 0;
      if (op == '*') {
        if (__builtin_mul_overflow(x, y, &z) && unused_ == 0) fail("overflows");
      } else if (unused_ == 0) {
        if (y == 0 || (x == INT64_MIN && y == -1)) fail("division by zero or overflow");
        if (op == '/' && x % y != 0) fail(fmt::format("{} / {} does not come out even", x, y));
        z = op == '/' ? x / y : x % y;
      }
      a = z;
    }
  }
  Result factor() {
    if (take("(")) {
      Result r = choice();
      if (!take(")")) fail("')' is missing");
      return r;
    }
    if (take("-")) {
      const Result r = factor();
      const auto* w = std::get_if<std::string>(&r);
      if (w && number(r)) return w->front() == '-' ? w->substr(1) : '-' + *w;
      const std::int64_t x = integer(r);
      if (x == INT64_MIN && unused_ == 0) fail("overflows");
      return x == INT64_MIN ? x : -x;
    }
    if (take("$")) return parameter(word());
    skip();
    const std::string w = literal();
    if (w.empty())
      fail(at_ < text_.size() ? fmt::format("'{}' is not understood", text_.substr(at_))
                              : "it ends too soon");
    return parse(w);
  }

  Result parameter(const std::string& name) const {
    const config::Value* v = scope_.find(name);
    if (!v) {
      const std::vector<std::string> names = scope_.names();
      const auto near = config::nearest(name, names);
      std::string known;
      for (const std::string& n : names) known += (known.empty() ? "$" : ", $") + n;
      fail(fmt::format("there is no parameter '${}'{}; known here: {}", name,
                       near ? fmt::format(", did you mean '${}'?", *near) : "",
                       known.empty() ? "none" : known));
    }
    return parse(v->scalar);
  }

  Result parse(const std::string& w) const {
    if (const std::optional<bool> truth = config::truth_of(w)) return *truth;
    std::int64_t x = 0;
    const auto [end, error] = std::from_chars(w.data(), w.data() + w.size(), x);
    if (end == w.data() + w.size() && !w.empty()) {
      if (error != std::errc{}) fail("overflows");
      return x;
    }
    return w;
  }

  static std::string show(const Result& r) {
    if (const auto* x = std::get_if<std::int64_t>(&r)) return fmt::format("{}", *x);
    if (const auto* x = std::get_if<bool>(&r)) return *x ? "true" : "false";
    return std::get<std::string>(r);
  }

  friend std::string lpsgd::evaluate(const std::string&, const ParameterScope&, const config::Origin&,
                                     const std::string&);

  const std::string& text_;
  const ParameterScope& scope_;
  const config::Origin& origin_;
  const std::string& path_;
  std::size_t at_ = 0;
  int unused_ = 0;  // above 0: in a part whose value is not needed
};

}  // namespace

std::string evaluate(const std::string& text, const ParameterScope& scope, const config::Origin& origin,
                     const std::string& path) {
  return Evaluator::show(Evaluator(text, scope, origin, path).run());
}

config::Value substitute(const config::Value& value, const ParameterScope& scope, const std::string& path) {
  config::Value out = value;
  if (value.is_scalar() && !value.quoted && value.scalar.find('$') != std::string::npos)
    out.scalar = evaluate(value.scalar, scope, value.origin, path);
  for (config::Value& item : out.items) item = substitute(item, scope, path);
  for (config::Value::Entry& entry : out.entries) entry.value = substitute(entry.value, scope, path);
  return out;
}

}  // namespace lpsgd
