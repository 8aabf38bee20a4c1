// The commands of `lpsgd`, one function each (`bench`: trainer/bench/commands.h). They throw the types of
// core/error.h; main() prints the error and returns its status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/progress.h"

namespace lpsgd {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;  // a.b=value
  std::string out;                     // empty: runs/<name>-<time>
  bool resume = false;
  bool resume_required = false;  // a folder without a checkpoint is refused; implies resume
  std::string init;  // a file, checkpoint or run whose weights the run starts from; empty: random ones
  std::vector<std::string> init_skip;  // names of layers and tensors that start from random values even so
  std::optional<std::int64_t> steps;
  std::int64_t check_replicas = 0;  // steps between comparisons; 0: none
  std::string trace;                // folder; empty: none
  ProgressMode progress = ProgressMode::automatic;
  std::vector<std::string> command_line;
};

/// Trains. Errors that concern all ranks are printed here. Returns the process's exit status.
int train_command(const TrainArguments& arguments);

struct ShowArguments {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};
/// Every layer and tensor: shape, parameters, FLOPs, codec, bytes on the wire.
std::string show_command(const ShowArguments& arguments);

struct EvalArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string checkpoint;
  bool json = false;
};
/// Loss, top-1 and top-5 of a checkpoint on the test split.
std::string eval_command(const EvalArguments& arguments);

struct InferArguments {
  std::string run;                     // its folder
  std::string checkpoint;              // empty: the newest
  std::vector<std::string> overrides;  // of the run's config.yaml
  std::vector<std::string> images;     // files, and folders of images
  std::int64_t top = 5;
  bool json = false;
};
/// Prints the most probable classes of each image as they are found, or all of them as JSON. An image that
/// cannot be read is named on standard error, or in the JSON, and the others are classified. Returns the
/// process's exit status: 1 if there was one.
int infer_command(const InferArguments& arguments);

struct ExportArguments {
  std::string run, checkpoint;  // as InferArguments
  std::string onnx;             // the file to write
  bool state = false;           // recurrent layers' state becomes input and output
  bool json = false;
};
/// Writes a run's network with its weights as an ONNX model.
std::string export_command(const ExportArguments& arguments);

struct QuantizeArguments {
  std::string in, codec, out;
  std::int64_t seed = 1;
};
/// Tensors (steps, K, n) in, exchanged means (steps, n) out: K ranks' gradients through the real exchange.
std::string quantize_command(const QuantizeArguments& arguments);

struct DoctorArguments {
  bool json = false;
  bool ranks_only = false;  // nothing that concerns one machine alone
};
/// What this machine can do and what is wrong, with advice; under mpirun also of the ranks together. Prints
/// it, and returns the process's exit status.
int doctor_command(const DoctorArguments& arguments);

}  // namespace lpsgd
