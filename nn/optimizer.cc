#include "nn/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/config_shape.h"
#include "core/error.h"
#include "nn/cpu/kernels.h"
#include "nn/cuda/device_sgd.h"

namespace lpsgd {

namespace {

constexpr std::array kinds{TensorKind::conv, TensorKind::dense, TensorKind::norm,
                           TensorKind::bias, TensorKind::lstm,  TensorKind::embedding};

bool is_kind(const std::string& word) {
  return std::any_of(kinds.begin(), kinds.end(), [&](TensorKind kind) { return word == to_text(kind); });
}

std::vector<std::string> kind_words() {
  std::vector<std::string> words;
  for (const TensorKind kind : kinds) words.emplace_back(to_text(kind));
  return words;
}

/// The 2-norm of all gradients: squares are added in double, tensor by tensor, in the order of memory.
double norm(const std::vector<TensorInfo>& tensors, std::span<const float> gradients) {
  double sum = 0;
  for (const TensorInfo& t : tensors) {
    const float* g = gradients.data() + t.offset;
    double lanes[8] = {};
    std::int64_t i = 0;
    for (; i + 8 <= t.elements; i += 8)
      for (int j = 0; j < 8; ++j) lanes[j] += static_cast<double>(g[i + j]) * static_cast<double>(g[i + j]);
    for (int j = 0; i < t.elements; ++i, ++j)
      lanes[j] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
    for (const double lane : lanes) sum += lane;
  }
  return std::sqrt(sum);
}

}  // namespace

void fields(config::Visitor& v, OptimizerOptions& o) {
  std::size_t kind = 0;
  v.choice("kind", kind, std::array{"sgd"},
           "stochastic gradient descent with momentum, as in torch.optim.SGD; the only kind so far");
  v.field("momentum", o.momentum, "mu in v = mu*v + g: the share of the previous update that is kept",
          {.min = 0, .max = 1});
  v.field("nesterov", o.nesterov, "Nesterov momentum: weights move along g + mu*v instead of v");
  v.field("momentum_unit_gain", o.momentum_unit_gain,
          "as in CNTK, v = mu*v + (1-mu)*g: a rate of this convention is 1/(1-mu) times one without it");
  v.field("weight_decay", o.weight_decay, "wd in g = g + wd*w: pulls weights towards zero", {.min = 0});
  v.shape([] { return config::Shape::list(config::Shape::word(kind_words())); });
  v.custom(
      "no_decay", "list of conv, dense, norm, bias, lstm, embedding",
      "the kinds of tensors to which weight decay does not apply",
      [&](const config::Value& value, const std::string& path) {
        if (!value.is_sequence()) config::fail(value.origin, path, "expected a list of kinds of tensors");
        o.no_decay.clear();
        for (const config::Value& item : value.items) {
          const std::string word = config::to_string(item, path);
          if (!is_kind(word)) {
            const std::vector<std::string> words = kind_words();
            config::fail(item.origin, path,
                         fmt::format("'{}' is not a kind of tensor{}; allowed: {}", word,
                                     config::did_you_mean(word, words), fmt::join(words, ", ")));
          }
          o.no_decay.push_back(word);
        }
      },
      [&] {
        config::Value list = config::Value::sequence();
        for (const std::string& word : o.no_decay) list.items.push_back(config::Value::plain(word));
        return list;
      });
  v.field("clip_norm", o.clip_norm,
          "gradients are scaled so that their 2-norm over all tensors is at most this; 0: off", {.min = 0});
}

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<TensorInfo> tensors, std::size_t arena,
                     StreamView stream)
    : options_(options), tensors_(std::move(tensors)), mu_(options.momentum) {
  for (const std::string& word : options_.no_decay) require(is_kind(word), "no_decay names kinds of tensors");
  for (const TensorInfo& t : tensors_) {
    const bool decayed = std::find(options_.no_decay.begin(), options_.no_decay.end(), to_text(t.kind)) ==
                         options_.no_decay.end();
    // The padding between neighbours is zero and stays so.
    if (runs_.empty() || runs_.back().decayed != decayed) runs_.push_back({t.offset, t.offset, decayed});
    runs_.back().end = t.offset + t.elements;
  }
  if (!stream.device().is_cuda()) {
    momentum_ = Buffer<float>(arena);
    return;
  }
  constexpr std::int64_t group = 16;  // tensors start at multiples of it
  std::vector<std::uint8_t> decayed(arena / group, 1);
  for (const Run& run : runs_)
    for (std::int64_t i = run.begin / group; i * group < run.end; ++i)
      decayed[static_cast<std::size_t>(i)] = run.decayed;
  device_ = make_device_sgd(options_, arena, decayed, stream);
}

Optimizer::~Optimizer() = default;

std::span<float> Optimizer::momentum() {
  return device_ ? device_->momentum() : momentum_.view();
}

void Optimizer::set_rate(double lr) {
  const double gain = options_.momentum_unit_gain ? 1 - mu_ : 1;
  rates_ = {static_cast<float>(lr), static_cast<float>(mu_), static_cast<float>(gain)};
  if (device_) device_->set_rates(*rates_);
}

void Optimizer::step(std::span<float> parameters, std::span<const float> gradients) {
  require(parameters.size() == momentum().size() && gradients.size() == parameters.size(),
          "the arenas have one layout");
  require(rates_.has_value(), "the optimizer has no learning rate");
  if (device_) return device_->step(parameters, gradients);
  float scale = 1.0f;
  if (options_.clip_norm > 0) {
    // PyTorch's clip_grad_norm_: clip / (norm + 1e-6), at most 1.
    const double factor = options_.clip_norm / (norm(tensors_, gradients) + 1e-6);
    if (factor < 1) scale = static_cast<float>(factor);
  }
  for (const Run& run : runs_)
    cpu::kernels().sgd(parameters.data() + run.begin, gradients.data() + run.begin,
                       momentum_.data() + run.begin, run.end - run.begin, *rates_,
                       run.decayed ? static_cast<float>(options_.weight_decay) : 0.0f, scale,
                       options_.nesterov);
}

}  // namespace lpsgd
