#pragma once

#include "comm/agree.h"

namespace lpsgd {

/// The state of a run has become useless: the run ends, and the last checkpoint stands. All ranks throw it at
/// one step.
class StateError : public SharedError {
 public:
  using SharedError::SharedError;
};

}  // namespace lpsgd
