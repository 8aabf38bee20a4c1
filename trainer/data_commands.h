// `lpsgd data check` and `lpsgd data pack`. They throw the types of core/error.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_packer.h"

namespace lpsgd {

struct DataCheckArguments {
  std::string config;
  std::vector<std::string> overrides;
};
/// Reads every sample of both splits. Prints each one that cannot be read, and how many there are of which
/// class and, where there are few, of which size. Returns the process's exit status: 1 if a sample cannot be
/// read.
int data_check_command(const DataCheckArguments& arguments);

struct DataPackArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  Split split = Split::train;
  PackOptions pack;
};
/// Writes the images of one split into a shard. One that cannot be read is an error or, with
/// `data.on_bad_sample: skip`, left out and named in a warning.
int data_pack_command(const DataPackArguments& arguments);

}  // namespace lpsgd
