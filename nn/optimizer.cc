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

/// The sum of squares of n values, in double, in the order of memory.
double squares(const float* g, std::int64_t n) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) lanes[j] += static_cast<double>(g[i + j]) * static_cast<double>(g[i + j]);
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// The 2-norm of all gradients.
double norm(const std::vector<TensorInfo>& tensors, std::span<const float> gradients) {
  double sum = 0;
  for (const TensorInfo& t : tensors) sum += squares(gradients.data() + t.offset, t.elements);
  return std::sqrt(sum);
}

bool holds(const std::vector<std::string>& kinds_named, TensorKind kind) {
  return std::find(kinds_named.begin(), kinds_named.end(), to_text(kind)) != kinds_named.end();
}

/// A key whose value is a list of kinds of tensors.
void kinds_field(config::Visitor& v, const char* key, std::vector<std::string>& named, const char* help) {
  v.shape([] { return config::Shape::list(config::Shape::word(kind_words())); });
  v.custom(
      key, "list of conv, dense, norm, bias, lstm, embedding", help,
      [&](const config::Value& value, const std::string& path) {
        if (!value.is_sequence()) config::fail(value.origin, path, "expected a list of kinds of tensors");
        named.clear();
        for (const config::Value& item : value.items) {
          const std::string word = config::to_string(item, path);
          if (!is_kind(word)) {
            const std::vector<std::string> words = kind_words();
            config::fail(item.origin, path,
                         fmt::format("'{}' is not a kind of tensor{}; allowed: {}", word,
                                     config::did_you_mean(word, words), fmt::join(words, ", ")));
          }
          named.push_back(word);
        }
      },
      [&] {
        config::Value list = config::Value::sequence();
        for (const std::string& word : named) list.items.push_back(config::Value::plain(word));
        return list;
      });
}

}  // namespace

void fields(config::Visitor& v, OptimizerOptions& o) {
  v.choice(
      "kind", o.kind,
      {{"sgd", OptimizerKind::sgd},
       {"lars", OptimizerKind::lars},
       {"adam", OptimizerKind::adam},
       {"adamw", OptimizerKind::adamw}},
      "sgd: with momentum, as in torch.optim.SGD; lars: sgd with a rate for each tensor; adam, adamw: as "
      "in torch.optim");
  v.field("momentum", o.momentum, "mu in v = mu*v + g: the share of the previous update that is kept",
          {.min = 0, .max = 1});
  v.field("nesterov", o.nesterov, "Nesterov momentum: weights move along g + mu*v instead of v");
  v.field("momentum_unit_gain", o.momentum_unit_gain,
          "as in CNTK, v = mu*v + (1-mu)*g: a rate of this convention is 1/(1-mu) times one without it");
  v.field("weight_decay", o.weight_decay,
          "wd in g = g + wd*w, which pulls weights towards zero; adamw multiplies w by 1 - lr*wd instead",
          {.min = 0});
  kinds_field(v, "no_decay", o.no_decay, "the kinds of tensors to which weight decay does not apply");
  v.field("clip_norm", o.clip_norm,
          "gradients are scaled so that their 2-norm over all tensors is at most this; 0: off", {.min = 0});
  v.field("noise", o.noise,
          "the standard deviation of normal noise that is added to the gradients in the first step: to their "
          "mean, and in a local step to each rank's own, which differ; 0: none",
          {.min = 0});
  v.field("noise_decay", o.noise_decay,
          "the noise's variance falls as 1/(1+t)^noise_decay over the steps t; 0: it stays", {.min = 0});
  v.field("trust", o.trust,
          "of lars: the ratio of a tensor's update to its weights, trust*|w| / (|g| + wd*|w|) times "
          "(g + wd*w), before momentum",
          {.min = 0, .min_open = true});
  kinds_field(v, "lars_exclude", o.lars_exclude, "of lars: the kinds of tensors that it updates as sgd does");
  v.field("beta1", o.beta1, "of adam and adamw: the share of the first moment that is kept",
          {.min = 0, .max = 0.9999999});
  v.field("beta2", o.beta2, "of adam and adamw: the share of the second moment that is kept",
          {.min = 0, .max = 0.9999999});
  v.field("eps", o.eps, "of adam and adamw: is added to the root of the second moment",
          {.min = 0, .min_open = true});
}

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<TensorInfo> tensors, std::size_t arena,
                     StreamView stream, std::uint32_t seed)
    : options_(options), tensors_(std::move(tensors)), seed_(seed), mu_(options.momentum) {
  for (const auto* named : {&options_.no_decay, &options_.lars_exclude})
    for (const std::string& word : *named) require(is_kind(word), "no_decay names kinds of tensors");
  const bool lars = options_.kind == OptimizerKind::lars;
  std::vector<OptimizedTensor> optimized;
  for (const TensorInfo& t : tensors_) {
    const bool decayed = !holds(options_.no_decay, t.kind);
    const bool adapted = lars && !holds(options_.lars_exclude, t.kind);
    optimized.push_back({t.offset, t.elements, decayed, adapted});
    // The padding between neighbours is zero and stays so.
    if (lars || runs_.empty() || runs_.back().decayed != decayed)
      runs_.push_back({t.offset, t.offset, decayed, adapted});
    runs_.back().end = t.offset + t.elements;
  }
  if (stream.device().is_cuda()) {
    device_ = make_device_sgd(options_, arena, optimized, stream, seed);
    return;
  }
  momentum_ = Buffer<float>(arena);
  if (options_.is_adam()) second_ = Buffer<float>(arena);
}

Optimizer::~Optimizer() = default;

std::span<float> Optimizer::momentum() {
  return device_ ? device_->momentum() : momentum_.view();
}

std::span<float> Optimizer::second_moment() {
  return device_ ? device_->second_moment() : second_.view();
}

std::vector<NamedArena> Optimizer::arenas() {
  std::vector<NamedArena> out{{"momentum", momentum()}};
  if (options_.is_adam()) out.push_back({"second_moment", second_moment()});
  return out;
}

void Optimizer::set_rate(double lr, std::int64_t step) {
  maths::StepRates rates;
  const double gain = options_.momentum_unit_gain ? 1 - mu_ : 1, t = static_cast<double>(step) + 1;
  rates.sgd = {static_cast<float>(lr), static_cast<float>(mu_), static_cast<float>(gain)};
  if (options_.is_adam()) {
    const bool decoupled = options_.kind == OptimizerKind::adamw;
    rates.adam = {static_cast<float>(lr / (1 - std::pow(options_.beta1, t))),
                  static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, t))),
                  static_cast<float>(decoupled ? 1 - lr * options_.weight_decay : 1),
                  static_cast<float>(options_.beta1),
                  static_cast<float>(options_.beta2),
                  static_cast<float>(options_.eps),
                  static_cast<float>(1 - options_.beta1),
                  static_cast<float>(1 - options_.beta2)};
  }
  rates.noise = static_cast<float>(options_.noise * std::pow(t, -options_.noise_decay / 2));
  rates.step = static_cast<std::uint32_t>(step);
  rates.rank = noise_rank_;
  rates_ = rates;
  if (device_) device_->set_rates(rates);
}

void Optimizer::step(std::span<float> parameters, std::span<float> gradients) {
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
  if (options_.noise > 0) {
    add_noise(gradients, scale);
    scale = 1.0f;
  }
  for (const Run& run : runs_) {
    float* const w = parameters.data() + run.begin;
    const float* const g = gradients.data() + run.begin;
    float* const v = momentum_.data() + run.begin;
    const std::int64_t n = run.end - run.begin;
    if (options_.is_adam()) {
      const bool decoupled = options_.kind == OptimizerKind::adamw;
      cpu::kernels().adam(w, g, v, second_.data() + run.begin, n, rates_->adam,
                          decoupled ? 0.0f : decay_of(run.decayed), run.decayed ? rates_->adam.shrink : 1.0f,
                          scale);
      continue;
    }
    maths::SgdRates rates = rates_->sgd;
    if (run.adapted)
      rates.gain *=
          maths::lars_ratio(std::sqrt(squares(w, n)), static_cast<double>(scale) * std::sqrt(squares(g, n)),
                            static_cast<double>(decay_of(run.decayed)),
                            static_cast<double>(static_cast<float>(options_.trust)));
    cpu::kernels().sgd(w, g, v, n, rates, decay_of(run.decayed), scale, options_.nesterov);
  }
}

void Optimizer::add_noise(std::span<float> gradients, float scale) const {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    float* const g = gradients.data() + tensors_[t].offset;
    for (std::int64_t i = 0; i < tensors_[t].elements; i += 4) {
      const maths::Normals z =
          maths::gradient_noise(static_cast<std::uint32_t>(i / 4), static_cast<std::uint32_t>(t),
                                rates_->step, rates_->rank, seed_);
      for (std::int64_t k = 0; k < 4 && i + k < tensors_[t].elements; ++k)
        g[i + k] = g[i + k] * scale + z.x[k] * rates_->noise;
    }
  }
}

}  // namespace lpsgd
