// The operations that a transport has in flight.
#pragma once

#include <deque>
#include <vector>

#include "comm/transport.h"

namespace lpsgd {

/// Operations by request. take() reuses one that was given back, without resetting it, so steps allocate
/// nothing once enough are reserved. An operation's address does not change.
template <class Operation>
class Slots {
 public:
  using Request = Transport::Request;

  Request take() {
    if (free_.empty()) add();
    const Request request = free_.back();
    free_.pop_back();
    return request;
  }
  void give_back(Request request) { free_.push_back(request); }
  void reserve(std::size_t count) {
    free_.reserve(count);
    while (size() < count) add();
  }

  Operation& operator[](Request request) { return operations_[request]; }
  std::size_t size() const { return operations_.size(); }
  auto begin() { return operations_.begin(); }
  auto end() { return operations_.end(); }

 private:
  void add() {
    free_.push_back(size());
    operations_.emplace_back();
  }

  std::deque<Operation> operations_;
  std::vector<Request> free_;
};

}  // namespace lpsgd
