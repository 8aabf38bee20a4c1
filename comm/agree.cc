#include "comm/agree.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <optional>

#include "core/checksum.h"

namespace lpsgd {

namespace {

constexpr std::size_t longest_value = 80;  // in a message
constexpr std::size_t most_names = 5;      // of further facts that differ

/// What collective_try() sends of an error: its exit status, a blank, its message. For the blank a '+' if the
/// message is that of several ranks, which it names.
struct Note {
  int status = 1;
  bool is_shared = false;
  std::string message;
};

Note parse_note(const std::string& text, std::size_t rank) {
  Note note;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, note.status);
  if (error != std::errc() || end == last || (*end != ' ' && *end != '+') || note.status < 1 ||
      note.status > 255)
    throw impossible(rank, fmt::format("'{:.40}' as its error", text));
  note.is_shared = *end == '+';
  note.message.assign(end + 1, last);
  return note;
}

// Facts as one text: name, 0, value, 0, ...
std::string joined(const std::vector<Fact>& facts) {
  std::string out;
  for (const Fact& fact : facts) out += fact.name + '\0' + fact.value + '\0';
  return out;
}

std::vector<Fact> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0, end = 0; (end = text.find('\0', at)) != std::string::npos; at = end + 1)
    words.push_back(text.substr(at, end - at));
  std::vector<Fact> facts;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) facts.push_back({words[i], words[i + 1]});
  return facts;
}

/// The value of a fact; nothing if there is no such fact.
std::optional<std::string> value_of(const std::vector<Fact>& facts, const std::string& name) {
  const auto at = std::find_if(facts.begin(), facts.end(), [&](const Fact& f) { return f.name == name; });
  return at == facts.end() ? std::nullopt : std::optional(at->value);
}

/// "0.1 on ranks 0, 2-3, 0.2 on rank 1".
std::string values_text(const std::vector<std::optional<std::string>>& values) {
  std::vector<std::pair<std::optional<std::string>, std::vector<int>>> holders;
  for (std::size_t r = 0; r < values.size(); ++r) {
    const auto same = [&](const auto& holder) { return holder.first == values[r]; };
    auto at = std::find_if(holders.begin(), holders.end(), same);
    if (at == holders.end()) at = holders.insert(at, {values[r], {}});
    at->second.push_back(static_cast<int>(r));
  }
  const bool is_long = std::any_of(holders.begin(), holders.end(), [](const auto& holder) {
    return holder.first && holder.first->size() > longest_value;
  });
  std::vector<std::string> texts;
  for (const auto& [value, ranks] : holders) {
    const std::string shown = is_long ? (texts.empty() ? "one value" : "another") : value.value_or("nothing");
    texts.push_back(fmt::format("{} on {}", shown.empty() ? "\"\"" : shown, ranks_text(ranks)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// What differs between the ranks' facts, or an empty string.
std::string disagreement(const std::vector<std::string>& texts) {
  std::vector<std::vector<Fact>> ranks;
  ranks.reserve(texts.size());
  for (const std::string& text : texts) ranks.push_back(split(text));
  std::string message;
  std::vector<std::string> others;
  const auto compare = [&](const std::string& name) {
    std::vector<std::optional<std::string>> values;
    values.reserve(ranks.size());
    for (const std::vector<Fact>& facts : ranks) values.push_back(value_of(facts, name));
    if (std::all_of(values.begin(), values.end(), [&](const auto& v) { return v == values[0]; })) return;
    if (message.empty())
      message = fmt::format("the ranks disagree on {}: {}", name, values_text(values));
    else
      others.push_back(name);
  };
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const Fact& fact : ranks[r]) {
      const auto has_it = [&](const std::vector<Fact>& facts) {
        return value_of(facts, fact.name).has_value();
      };
      const auto here = ranks.begin() + static_cast<std::ptrdiff_t>(r);
      if (std::none_of(ranks.begin(), here, has_it)) compare(fact.name);
    }
  if (others.empty()) return message;
  const std::size_t more = others.size() > most_names ? others.size() - most_names : 0;
  others.resize(others.size() - more);
  return fmt::format("{}; also on {}{}", message, fmt::join(others, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

void collective_try(Transport& transport, const std::function<void()>& body, Place at) {
  std::string note;  // exit status, then the message
  try {
    body();
  } catch (const CommError&) {
    throw;  // the transport itself is broken: nothing can be compared over it
  } catch (const SharedError& e) {
    note = fmt::format("{}+{}", e.exit_status(), e.what());
  } catch (const Error& e) {
    note = fmt::format("{} {}", e.exit_status(), e.what());
  } catch (const std::bad_alloc&) {
    note = "1 out of memory";
  } catch (const std::exception& e) {
    note = fmt::format("1 {}", e.what());
  }
  const std::vector<std::string> notes = transport.all_gather_text(note, at);
  const auto first =
      std::find_if(notes.begin(), notes.end(), [](const std::string& s) { return !s.empty(); });
  if (first == notes.end()) return;
  const bool everywhere =
      std::all_of(notes.begin(), notes.end(), [&](const std::string& s) { return s == *first; });
  std::vector<std::string> lines;
  int status = 0;
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    if (notes[rank].empty()) continue;
    const Note one = parse_note(notes[rank], rank);
    if (status == 0) status = one.status;
    const int number = transport.rank_in_run(static_cast<int>(rank));
    lines.push_back(everywhere || one.is_shared ? one.message
                                                : fmt::format("rank {}: {}", number, one.message));
    // All of a block of ranks have its error.
    if (std::find(lines.begin(), lines.end() - 1, lines.back()) != lines.end() - 1) lines.pop_back();
    if (everywhere) break;
  }
  throw SharedError(fmt::format("{}", fmt::join(lines, "\n")), status);
}

void require_agreement(Transport& transport, const std::vector<Fact>& facts, Place at) {
  const std::string mine = joined(facts);
  if (transport.all_equal(checksum64(std::as_bytes(std::span(mine))), at)) return;
  throw SharedError(disagreement(transport.all_gather_text(mine, at)), 2);
}

}  // namespace lpsgd
