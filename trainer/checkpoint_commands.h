// `lpsgd checkpoint list`, `verify` and `diff`. They throw the types of core/error.h.
#pragma once

#include <string>

namespace lpsgd {

struct CheckpointArguments {
  std::string run;   // a run's folder; for verify and diff also a checkpoint's
  std::string a, b;  // diff: checkpoints of `run`; with `b` empty, `run` and `a` are folders
  bool json = false;
};

/// What a command prints, and the process's exit status.
struct CheckpointReport {
  std::string text;
  int status = 0;
};

/// The checkpoints of a run, oldest first. Their files are not read.
CheckpointReport checkpoint_list_command(const CheckpointArguments& arguments);
/// Compares every file with its checksum. Status 1 if one is damaged or missing, or if there is no
/// checkpoint.
CheckpointReport checkpoint_verify_command(const CheckpointArguments& arguments);
/// Which tensors of two checkpoints differ, by how much, and what differs in their manifests. Status 0
/// also if they differ.
CheckpointReport checkpoint_diff_command(const CheckpointArguments& arguments);

}  // namespace lpsgd
