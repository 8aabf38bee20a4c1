#include "comm/agree.h"

#include <algorithm>
#include <new>

namespace lpsgd {

void collective_try(Transport& transport, const std::function<void()>& body) {
  std::string note;  // exit status, then the message
  try {
    body();
  } catch (const CommError&) {
    throw;  // the transport itself is broken: nothing can be compared over it
  } catch (const Error& e) {
    note = fmt::format("{} {}", e.exit_status(), e.what());
  } catch (const std::bad_alloc&) {
    note = "1 out of memory";
  } catch (const std::exception& e) {
    note = fmt::format("1 {}", e.what());
  }
  const std::vector<std::string> notes = transport.all_gather_text(note);
  const auto first =
      std::find_if(notes.begin(), notes.end(), [](const std::string& s) { return !s.empty(); });
  if (first == notes.end()) return;
  const bool everywhere =
      std::all_of(notes.begin(), notes.end(), [&](const std::string& s) { return s == *first; });
  const int status = first->front() - '0';
  std::string message;
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    if (notes[rank].empty()) continue;
    if (!message.empty()) message += "\n";
    message += everywhere ? notes[rank].substr(2) : fmt::format("rank {}: {}", rank, notes[rank].substr(2));
    if (everywhere) break;
  }
  throw SharedError(message, status);
}

}  // namespace lpsgd
