// How much of their room batches of sequences use.
#pragma once

#include <cstdint>

namespace lpsgd {

/// Zeros for images.
struct SequenceCounts {
  std::int64_t sequences = 0;  // or pieces of them
  std::int64_t room = 0;       // positions of each batch on its rank, times its longest sequence's frames

  SequenceCounts& operator+=(const SequenceCounts& more) {
    sequences += more.sequences;
    room += more.room;
    return *this;
  }
};

}  // namespace lpsgd
