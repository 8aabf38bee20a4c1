// CMU's AN4 corpus of spoken letters, digits and words (Acero, "Acoustical and Environmental Robustness in
// Automatic Speech Recognition", 1990).
#pragma once

#include <memory>

#include "data/dataset.h"

namespace lpsgd {

/// Opens AN4 in `root` (docs/data-sequences.md): etc/an4_train.fileids names the recordings,
/// wav/NAME.raw holds their headerless 16 bit samples at 16 kHz, and the alignment (an HTK master label file)
/// gives each frame its state, which is its label. The recordings of `speech.held_out` are the test split;
/// AN4's own test recordings have no alignment. Features are computed here, once, and are normalised by their
/// means and deviations over the training split.
std::shared_ptr<const Dataset> open_an4(const DataOptions& options, Split split);

}  // namespace lpsgd
