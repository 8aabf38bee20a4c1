#include "trainer/doctor/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "core/clock.h"
#include "core/error.h"
#include "trainer/python_program.h"

namespace lpsgd::doctor {

namespace {

constexpr std::size_t most_output = std::size_t{1} << 20;

/// A pipe whose ends are not inherited by programs that other threads start.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw Error(fmt::format("no pipe: {}", std::strerror(errno)));
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }
  void close(std::size_t end) {
    if (ends_[end] >= 0) ::close(ends_[end]);
    ends_[end] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// Appends what can be read. False at the end of the stream.
bool read_some(int from, std::string& to) {
  std::array<char, 65536> part;
  const ssize_t n = ::read(from, part.data(), part.size());
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  to.append(part.data(), std::min(static_cast<std::size_t>(n), most_output - to.size()));
  return n > 0;
}

/// Whether the process has ended by `until`, a time of now_seconds().
bool wait_until(pid_t child, double until, int& status) {
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return true;
    if (now_seconds() >= until) return false;
    ::usleep(2000);
  }
}

struct Process {
  pid_t parent = 0;
  std::string start;  // with the number it names a process for good
};

/// Nothing if it has ended.
std::optional<Process> process(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(in, text);
  const std::size_t end = text.rfind(')');  // of its name
  if (end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(end + 1));
  Process found;
  std::string word;
  for (int field = 3; field <= 22 && words >> word; ++field) {  // proc(5) counts them
    if (field == 4) found.parent = static_cast<pid_t>(std::atoi(word.c_str()));
    if (field == 22) found.start = word;
  }
  return found;
}

/// The processes that `top` has started, and those that they have.
std::map<pid_t, Process> descendants(pid_t top) {
  std::map<pid_t, Process> all, out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    if (const std::optional<Process> one = pid > 0 ? process(pid) : std::nullopt) all[pid] = *one;
  }
  for (const auto& [pid, one] : all) {
    pid_t above = one.parent;
    for (auto at = all.find(above); above != top && at != all.end(); at = all.find(above))
      above = at->second.parent;
    if (above == top) out[pid] = one;
  }
  return out;
}

/// First asks, so that a launcher can end its ranks. It may have put what it started into other groups.
void end_with_all(pid_t child, int& status) {
  const std::map<pid_t, Process> started = descendants(child);
  ::kill(-child, SIGTERM);
  if (!wait_until(child, now_seconds() + 1, status)) {
    ::kill(-child, SIGKILL);
    wait_until(child, now_seconds() + 1, status);
  }
  ::kill(-child, SIGKILL);
  for (const auto& [pid, one] : started)
    if (const std::optional<Process> now = process(pid); now && now->start == one.start) ::kill(pid, SIGKILL);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& words, double seconds,
                      const std::vector<std::string>& variables) {
  std::vector<std::string> arguments = words, environment = variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at, name = entry.substr(0, entry.find('=') + 1);
    const bool is_given = std::any_of(variables.begin(), variables.end(), [&](const std::string& variable) {
      return variable.starts_with(name);
    });
    if (!is_given && !is_for_ranks(entry)) environment.emplace_back(entry);
  }
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  Pipe out, err, failure;
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ChildResult result;
  const double begin = now_seconds();
  const pid_t child = ::fork();
  if (child < 0) {
    result.start_error = std::strerror(errno);
    ::close(nothing);
    return result;
  }
  if (child == 0) {  // only calls that are safe between fork and exec
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // Ctrl-C at this program ends that one, too
    ::dup2(nothing, 0);
    ::dup2(out.in(), 1);
    ::dup2(err.in(), 2);
    ::execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    if (::write(failure.in(), &error, sizeof error) < 0) ::_exit(126);
    ::_exit(127);
  }
  ::setpgid(child, child);
  ::close(nothing);
  for (Pipe* pipe : {&out, &err, &failure}) pipe->close(1);
  int error = 0, status = 0;
  if (::read(failure.out(), &error, sizeof error) == sizeof error) result.start_error = std::strerror(error);
  std::array<pollfd, 2> streams{pollfd{out.out(), POLLIN, 0}, pollfd{err.out(), POLLIN, 0}};
  const double until = begin + seconds;
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    const double left = until - now_seconds();
    if (left <= 0) break;
    if (::poll(streams.data(), streams.size(), static_cast<int>(left * 1e3) + 1) <= 0) continue;
    for (std::size_t i = 0; i < streams.size(); ++i)
      if (streams[i].revents != 0 && !read_some(streams[i].fd, i == 0 ? result.out : result.err))
        streams[i].fd = -1;
  }
  if (!wait_until(child, until, status)) {
    result.timed_out = true;
    end_with_all(child, status);
  }
  result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.seconds = now_seconds() - begin;
  return result;
}

std::string last_line(const std::string& text) {
  std::string last;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string one = text.substr(at, end - at);
    one.erase(0, one.find_first_not_of(" \t\r"));
    if (!one.empty()) last = std::move(one);
    at = end + 1;
  }
  return last;
}

}  // namespace lpsgd::doctor
