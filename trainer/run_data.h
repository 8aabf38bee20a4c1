// A run's data sets, and the network that fits them.
#pragma once

#include <memory>

#include "trainer/run_config.h"

namespace lpsgd {

/// What a data set holds. It decides what the metrics count and are called.
enum class DataKind : std::uint8_t { images, speech, text };
DataKind kind_of(const Dataset& dataset);

/// Data opened once per process and shared by its ranks.
struct TrainData {
  std::shared_ptr<const Dataset> train, test;
};

/// Opens a split. FileError names up to three bad files, and says how many more there are; ConfigError has
/// the key's place.
std::shared_ptr<const Dataset> open_split(const RunConfig& run, Split split);

/// Opens both splits and sets data.mean and data.std of `run` to the values in use, for the record and so
/// that they are computed once. FileError; ConfigError with the key's place.
TrainData open_data(RunConfig& run);

/// The network with as many frames as the data sets need, if its file leaves that open. ConfigError.
NetworkSpec network_for(const RunConfig& run, std::initializer_list<const Dataset*> datasets);

/// data.evaluate of a split of images, with `auto` resolved. ConfigError.
EvaluateOptions evaluation_of(const RunConfig& run, const NetworkSpec& network, const Dataset& images);

/// Checks that network and data match: the shape of samples, the number of classes, the vocabulary, and a
/// training set of at least one batch. ConfigError.
void check_data(const RunConfig& run, const NetworkSpec& network, const Dataset& dataset, Split split);

}  // namespace lpsgd
