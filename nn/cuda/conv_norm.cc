#include "nn/cuda/conv_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"
#include "nn/cuda/conv_search.h"
#include "nn/cuda/norm_arrays.h"

namespace lpsgd::cuda {
namespace {

// Both are sums of the same values, in another order.
constexpr double largest_sums_error = 1e-4;

constexpr const char *joined_name = "joined", *separate_name = "separate";

struct Ways {
  std::function<void()> separate, joined;
  std::function<bool()> right;  // `joined` gives right results
};

/// Whether `joined` is faster, and right. With Context::deterministic nothing is measured.
bool is_joined_faster(Context& context, const char* what, const ConvProblem& problem, const NormInput& norm,
                      const Ways& ways) {
  const std::string norm_text = fmt::format("batch norm{} before it, {}", norm.relu ? " and ReLU" : "", what);
  const std::string name = fmt::format("{} {}", norm_text, key_text(problem.key()));
  const auto known = context.joined.find(name);
  if (known != context.joined.end()) return known->second;
  const std::string text = fmt::format("convolution ({}): {}", text_of(problem), norm_text);
  const std::string stored = context.plan_cache.find(name).value_or("");
  bool joined = stored == joined_name;
  if (context.deterministic) {
    joined = ways.right();
  } else if (!joined && stored != separate_name) {
    PlanSearch search = context.search();
    context.measure(search, text + ", " + separate_name, ways.separate);
    joined = context.measure(search, text + ", " + joined_name, ways.joined, ways.right);
    context.plan_cache.add(name, joined ? joined_name : separate_name);
  }
  context.joined[name] = joined;
  context.choices.push_back(fmt::format("{}: {}", text, joined ? joined_name : separate_name));
  return joined;
}

/// Runs the kernels on random operands, in the operation's own memory, where it leaves zeros. What a kernel
/// writes holds other values before.
class NormCheck {
 public:
  /// `problem`: of any pass.
  NormCheck(Context& context, const ConvProblem& problem, const NormInput& norm)
      : context_(context),
        channels_(problem.in[2]),
        inputs_(problem.batch * problem.in[0] * problem.in[1] * channels_),
        outputs_(problem.batch * problem.out[0] * problem.out[1] * problem.out[2]),
        weights_(problem.out[2] * 9 * channels_),
        cut_(cut_rows(DataType::bf16, inputs_ / channels_, channels_)),
        random_weights_(context.device, static_cast<std::size_t>(weights_) * sizeof(Bf16)),
        arrays_(context, channels_, std::int64_t{cut_.parts} * channels_, cut_.tiles),
        state_(arrays_.state()),
        norm_(norm) {
    fill(Random::weights, DataType::bf16, random_weights_.data(), weights_);
    fill(Random::constants, DataType::f32, arrays_.constants().data(), 4 * channels_);
    const std::vector<double> ones(static_cast<std::size_t>(channels_), 1);
    copy_bytes(state_.inverse, ones.data(), ones.size() * sizeof(double), context.stream);
    context.stream.synchronize();
    norm_.mean = state_.mean, norm_.scale = state_.scale, norm_.bias = state_.bias;
  }

  /// Whether both passes give the same bits as behind launch_normalize().
  bool loads_right(const OwnPass& forward, const OwnPass& weight_gradient) {
    void* const x = const_cast<Bf16*>(norm_.x);
    void* const y = forward.tensors.input;
    NormArrays behind(context_, forward.conv.shape.out_channels, small_conv_norm_partials(forward.conv), 1);
    const auto passes = [&](const NormInput& norm) {
      SmallConvTensors first = forward.tensors, second = weight_gradient.tensors;
      first.weights = random_weights_.data();
      first.norm = second.norm = norm;
      fill(Random::other, DataType::bf16, first.output, outputs_);
      fill(Random::other, DataType::f32, second.weight_gradient, weights_);
      run_own_conv(context_, forward.conv, ConvPass::forward, first);
      std::string out = checksum_of(first.output, DataType::bf16, outputs_);
      // With the statistics for a norm behind it, too.
      fill(Random::other, DataType::bf16, first.output, outputs_);
      check(run_small_conv(forward.conv, first, behind.state(), context_.handle()));
      out += checksum_of(first.output, DataType::bf16, outputs_);
      out += checksum_of(behind.state().mean, DataType::f32, forward.conv.shape.out_channels);
      out += checksum_of(behind.state().inverse, DataType::f32, 2 * forward.conv.shape.out_channels);
      fill(Random::gradient, DataType::bf16, second.output, outputs_);
      run_own_conv(context_, weight_gradient.conv, ConvPass::weight_gradient, second);
      return out + checksum_of(second.weight_gradient, DataType::f32, weights_);
    };
    const std::vector<Memory> used{{x, DataType::bf16, inputs_},
                                   {y, DataType::bf16, inputs_},
                                   {forward.tensors.output, DataType::bf16, outputs_},
                                   {weight_gradient.tensors.output, DataType::bf16, outputs_},
                                   {weight_gradient.tensors.weight_gradient, DataType::f32, weights_}};
    bool right = false;
    clearing(used, [&] {
      fill(Random::x, DataType::bf16, x, inputs_);
      check(launch_normalize(DataType::bf16, x, nullptr, y, channels_, norm_.relu, cut_, state_,
                             context_.handle()));
      const std::string expected = passes({});
      fill(Random::other, DataType::bf16, y, inputs_);
      right = passes(norm_) == expected;
    });
    return right;
  }

  /// The error of the sums' results, relative to those of launch_norm_gradient_sums(); infinite if the
  /// gradient of the input has other bits. `memory` has the partials and counters.
  double sums_error(const OwnPass& input_gradient, const NormState& memory) {
    void* const x = const_cast<Bf16*>(norm_.x);
    SmallConvTensors tensors = input_gradient.tensors;
    tensors.weights = random_weights_.data();
    NormGradient gradient;
    gradient.gradients = terms_of({tensors.input});
    gradient.stride = channels_;
    gradient.x = x;
    gradient.relu = norm_.relu;
    NormState own = state_;
    own.partials = memory.partials;
    own.finished = memory.finished;
    struct Results {
      std::string gradient;
      std::vector<float> sums;
    } expected, found;
    const auto results = [&](const std::function<void()>& run) {
      fill(Random::other, DataType::bf16, tensors.input, inputs_);
      fill(Random::other, DataType::f32, arrays_.sums().data(), 4 * channels_);
      run();
      Results out{checksum_of(tensors.input, DataType::bf16, inputs_),
                  std::vector<float>(arrays_.sums().size())};
      copy_values(std::span(out.sums), std::span<const float>(arrays_.sums()), context_.stream);
      context_.stream.synchronize();
      return out;
    };
    const std::vector<Memory> used{{x, DataType::bf16, inputs_},
                                   {tensors.output, DataType::bf16, outputs_},
                                   {tensors.input, DataType::bf16, inputs_}};
    clearing(used, [&] {
      fill(Random::x, DataType::bf16, x, inputs_);
      fill(Random::gradient, DataType::bf16, tensors.output, outputs_);
      expected = results([&] {
        run_own_conv(context_, input_gradient.conv, ConvPass::input_gradient, tensors);
        check(launch_norm_gradient_sums(DataType::bf16, gradient, cut_, state_, context_.handle()));
      });
      found = results(
          [&] { check(run_small_conv(input_gradient.conv, tensors, norm_, own, context_.handle())); });
    });
    if (found.gradient != expected.gradient) return std::numeric_limits<double>::infinity();
    double worst = 0;
    for (std::size_t i = 0; i < found.sums.size(); i += static_cast<std::size_t>(channels_)) {
      double errors = 0, squares = 0;
      for (std::size_t k = i; k < i + static_cast<std::size_t>(channels_); ++k) {
        const auto value = static_cast<double>(expected.sums[k]);
        errors += std::pow(static_cast<double>(found.sums[k]) - value, 2);
        squares += value * value;
      }
      if (std::isnan(errors)) return errors;
      if (errors > 0) worst = std::max(worst, std::sqrt(errors / squares));
    }
    return worst;
  }

 private:
  enum class Random : std::uint32_t { x, weights, gradient, constants, other };
  struct Memory {
    void* data;
    DataType type;
    std::int64_t values;
  };

  void fill(Random tensor, DataType type, void* to, std::int64_t n) {
    check(launch_random_operand(type, static_cast<std::uint32_t>(tensor), to, n, context_.handle()));
  }
  void clearing(const std::vector<Memory>& used, const std::function<void()>& run) {
    const auto clear = [&] {
      for (const Memory& m : used)
        zero_bytes(m.data, static_cast<std::size_t>(m.values * size_of(m.type)), context_.stream);
      context_.stream.synchronize();
    };
    try {
      run();
    } catch (...) {
      clear();
      throw;
    }
    clear();
  }
  std::string checksum_of(const void* memory, DataType type, std::int64_t values) {
    const auto bytes = static_cast<std::size_t>(values * size_of(type));
    std::vector<std::byte> piece(std::min(bytes, std::size_t{16} << 20));
    ChecksumStream sum;
    for (std::size_t at = 0; at < bytes; at += piece.size()) {
      const std::span now = std::span(piece).first(std::min(piece.size(), bytes - at));
      copy_bytes(now.data(), static_cast<const std::byte*>(memory) + at, now.size(), context_.stream);
      context_.stream.synchronize();
      sum.add(now);
    }
    return sum.text();
  }

  Context& context_;
  std::int64_t channels_, inputs_, outputs_, weights_;
  Cut cut_;
  DeviceMemory random_weights_;
  NormArrays arrays_;
  NormState state_;
  NormInput norm_;
};

/// Whether a check says so; false, too, if it cannot run.
bool is_right(const char* what, const std::function<double()>& error, double largest) {
  try {
    const double found = error();
    if (found <= largest) return true;
    log::warn("{}: wrong results on this device (error {:.3g}), so it is not done; please report it", what,
              found);
  } catch (const DeviceError& e) {
    log::debug("{}: {}", what, e.what());
  }
  return false;
}

}  // namespace

bool loads_norm(Context& context, const ConvProblem& forward_problem, NormSource& norm,
                const NormInput& input, const OwnPass& forward, const OwnPass& weight_gradient) {
  const auto passes = [&](const NormInput& loaded) {
    for (const auto& [pass, own] :
         {std::pair{ConvPass::forward, &forward}, {ConvPass::weight_gradient, &weight_gradient}}) {
      SmallConvTensors tensors = own->tensors;
      tensors.norm = loaded;
      run_own_conv(context, own->conv, pass, tensors);
    }
  };
  const auto separate = [&] {
    norm.normalize();
    passes({});
  };
  const auto right = [&] {
    return is_right(
        "a convolution that computes a batch norm as it loads",
        [&] {
          return NormCheck(context, forward_problem, input).loads_right(forward, weight_gradient) ? 0 : 1;
        },
        0);
  };
  return is_joined_faster(context, "computed as it loads", forward_problem, input,
                          {separate, [&] { passes(input); }, right});
}

bool takes_sums(Context& context, const ConvProblem& problem, NormSource& norm, const NormInput& input,
                const OwnPass& input_gradient, const NormState& state) {
  const auto separate = [&] {
    run_own_conv(context, input_gradient.conv, ConvPass::input_gradient, input_gradient.tensors);
    norm.gradient_sums();
  };
  const auto joined = [&] {
    check(run_small_conv(input_gradient.conv, input_gradient.tensors, input, state, context.handle()));
  };
  const auto right = [&] {
    return is_right(
        "a convolution that takes the sums of a batch norm's backward",
        [&] { return NormCheck(context, problem, input).sums_error(input_gradient, state); },
        largest_sums_error);
  };
  return is_joined_faster(context, "whose sums it takes", problem, input, {separate, joined, right});
}

}  // namespace lpsgd::cuda
