// Errors of several files, so that all that are bad are named and not only the first.
#pragma once

#include <string>

#include "core/error.h"

namespace lpsgd {

class FileErrors {
 public:
  /// Keeps the message if `body` throws a FileError.
  template <class F>
  void attempt(F body) {
    try {
      body();
    } catch (const FileError& e) {
      add(e.what());
    }
  }
  void add(const std::string& message) {
    if (!text_.empty()) text_ += '\n';
    text_ += message;
  }
  bool empty() const { return text_.empty(); }
  /// Throws a FileError with the messages kept, a line each, if there are any.
  void throw_if_any() const {
    if (!text_.empty()) throw FileError(text_);
  }

 private:
  std::string text_;
};

}  // namespace lpsgd
