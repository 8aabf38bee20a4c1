// What must be the same on all ranks of a run: the build, the command, its options, the configuration and the
// data (docs/exchange.md, "Ranks that disagree").
#pragma once

#include <string>
#include <vector>

#include "comm/agree.h"
#include "trainer/commands.h"
#include "trainer/run_config.h"
#include "trainer/run_data.h"

namespace lpsgd {

/// The build, and the name of the command.
std::vector<Fact> start_facts(const std::string& command);

/// The options of `lpsgd train`, but for --progress, which rank 0 alone uses, and --set, which the
/// configuration has.
std::vector<Fact> option_facts(const TrainArguments& arguments);

/// Every key as resolved. Of data.root and data.shards only whether they are set: machines may have the same
/// files in different folders, and data_facts() compares the files.
std::vector<Fact> config_facts(const RunConfig& run);

/// What both splits hold: how many samples, their names and labels, and their content as far as that is cheap
/// (all that lies in memory, of files a few).
std::vector<Fact> data_facts(const RunConfig& run, const TrainData& data);

}  // namespace lpsgd
