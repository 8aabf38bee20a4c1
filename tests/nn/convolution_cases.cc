// Convolutions as cases, and what they are by their definition.
#include <fmt/format.h>

#include <algorithm>

#include "tests/nn/operation_cases.h"

namespace lpsgd {

OperationCase convolution_case(std::int64_t batch, const Shape& in, const ConvDesc& d, bool relu) {
  OperationCase c;
  c.name = fmt::format("conv {} kernel {}x{} stride {}x{} pad {}x{} filters {} groups {}{}{}", shape_text(in),
                       d.kernel.h, d.kernel.w, d.stride.h, d.stride.w, d.pad.h, d.pad.w, d.filters, d.groups,
                       d.bias ? " bias" : "", relu ? " relu" : "");
  c.batch = batch;
  c.output = {(in[0] + 2 * d.pad.h - d.kernel.h) / d.stride.h + 1,
              (in[1] + 2 * d.pad.w - d.kernel.w) / d.stride.w + 1, d.filters};
  c.parameters = {{d.filters, d.kernel.h, d.kernel.w, in[2] / d.groups}};
  if (d.bias) c.parameters.push_back({d.filters});
  c.inputs = {in};
  c.relu = relu;
  c.convolution = d;
  c.make = [d](Backend& backend, const Binding& b) { return backend.conv(b, d); };
  return c;
}

Results convolution_by_definition(const OperationCase& c, const Results& given) {
  const ConvDesc& d = *c.convolution;
  const Shape &in = c.inputs[0], &out = c.output;
  const std::vector<float>&x = given.at("given input 0"), &w = given.at("given parameter 0");
  const std::vector<float> none(static_cast<std::size_t>(c.batch * out[0] * out[1] * out[2]));
  const std::vector<float>& dy = c.training ? given.at("given gradient 0") : none;
  const std::int64_t inner = in[2] / d.groups, outer = d.filters / d.groups;
  std::vector<double> y(dy.size()), dx(x.size()), dw(w.size()), db(static_cast<std::size_t>(d.filters));
  for (std::int64_t n = 0; n < c.batch; ++n)
    for (std::int64_t h = 0; h < out[0]; ++h)
      for (std::int64_t v = 0; v < out[1]; ++v)
        for (std::int64_t o = 0; o < d.filters; ++o) {
          const auto to = static_cast<std::size_t>(((n * out[0] + h) * out[1] + v) * d.filters + o);
          const double slope = static_cast<double>(dy[to]);
          double sum =
              d.bias ? static_cast<double>(given.at("given parameter 1")[static_cast<std::size_t>(o)]) : 0;
          db[static_cast<std::size_t>(o)] += slope;
          for (std::int64_t i = 0; i < d.kernel.h; ++i)
            for (std::int64_t j = 0; j < d.kernel.w; ++j) {
              const std::int64_t row = h * d.stride.h + i - d.pad.h, column = v * d.stride.w + j - d.pad.w;
              if (row < 0 || row >= in[0] || column < 0 || column >= in[1]) continue;
              for (std::int64_t k = 0; k < inner; ++k) {
                const auto at = static_cast<std::size_t>(((n * in[0] + row) * in[1] + column) * in[2] +
                                                         o / outer * inner + k);
                const auto weight =
                    static_cast<std::size_t>(((o * d.kernel.h + i) * d.kernel.w + j) * inner + k);
                sum += static_cast<double>(w[weight]) * static_cast<double>(x[at]);
                dx[at] += slope * static_cast<double>(w[weight]);
                dw[weight] += slope * static_cast<double>(x[at]);
              }
            }
          y[to] = c.relu ? std::max(sum, 0.0) : sum;
        }
  Results truth{{"output", {y.begin(), y.end()}}};
  if (!c.training) return truth;
  if (c.input_gradients) truth["input 0"] = {dx.begin(), dx.end()};
  truth["parameter 0"] = {dw.begin(), dw.end()};
  if (d.bias) truth["parameter 1"] = {db.begin(), db.end()};
  return truth;
}

}  // namespace lpsgd
