#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "quant/codec.h"
#include "trainer/commands.h"

namespace lpsgd {

namespace {

constexpr std::int64_t max_ranks = 256;

/// Tensors with the same numbers of steps and ranks, which use one exchange.
using Group = std::pair<std::int64_t, std::int64_t>;  // steps, K

/// Most codecs carry a NaN or an infinity to all ranks, as NaNs of its bucket. Of the others the mean would
/// be a number.
void refuse_hidden(const NonFinite& found, const std::vector<TensorInfo>& tensors, const CodecSpec& codec) {
  const TensorInfo& tensor = tensors[static_cast<std::size_t>(found.tensor)];
  if (make_codec(codec, tensor)->carries_non_finite()) return;
  throw FileError(
      fmt::format("tensor '{}', step {}: the values of rank {} hold a NaN or an infinity, which {} "
                  "does not carry",
                  tensor.name, found.step, found.rank, to_text(codec)));
}

/// Runs the group's tensors through an exchange of K thread ranks. Tensors of other groups take part with no
/// values, so that each tensor keeps its number in the file, on which dither and owners depend.
void exchange_group(const Group& group, const std::vector<StoredTensor>& stored, const CodecSpec& codec,
                    std::uint32_t seed, std::vector<Buffer<float>>& means) {
  const auto [steps, ranks] = group;
  std::vector<TensorInfo> tensors;
  std::vector<std::size_t> order, members;
  std::int64_t arena = 0;
  for (std::size_t t = 0; t < stored.size(); ++t) {
    const bool member = Group{stored[t].shape[0], stored[t].shape[1]} == group;
    const std::int64_t n = member ? stored[t].shape[2] : 0;
    tensors.push_back({stored[t].name, TensorKind::bias, {n}, n, arena});
    arena += (n + 15) / 16 * 16;
    order.push_back(t);
    if (member) members.push_back(t);
  }
  const std::vector<CodecSpec> codecs(tensors.size(), codec);
  run_thread_ranks(static_cast<int>(ranks), [&](Transport& transport) {
    Buffer<float> gradients(static_cast<std::size_t>(arena));
    ExchangeOptions options;
    options.seed = seed;
    Exchange exchange(transport, tensors, codecs, gradients, order, options);
    for (std::int64_t step = 0; step < steps; ++step) {
      for (const std::size_t t : members) {
        const std::int64_t n = tensors[t].elements;
        const float* from = stored[t].values.data() + (step * ranks + transport.rank()) * n;
        std::copy_n(from, n, gradients.data() + tensors[t].offset);
      }
      exchange.begin(static_cast<std::uint32_t>(step));
      for (const std::size_t t : order) exchange.submit(t);
      exchange.finish();
      const NonFinite found = exchange.check_finite();
      if (found.tensor >= 0) refuse_hidden(found, tensors, codec);
      if (transport.rank() != 0) continue;
      for (const std::size_t t : members)
        std::copy_n(gradients.data() + tensors[t].offset, tensors[t].elements,
                    means[t].data() + step * tensors[t].elements);
    }
  });
}

}  // namespace

std::string quantize_command(const QuantizeArguments& arguments) {
  const CodecSpec codec = parse_codec(config::parse_text(arguments.codec, "--codec"), "codec");
  const std::string target = file_behind(arguments.out, "--out");
  const SafetensorsFile in(arguments.in);
  const std::vector<StoredTensor>& stored = in.tensors();
  std::set<Group> groups;
  for (const StoredTensor& t : stored) {
    if (t.shape.size() != 3)
      throw FileError(fmt::format("{}: tensor '{}' has {} dimensions; expected (steps, K, n)", arguments.in,
                                  t.name, t.shape.size()));
    if (t.shape[1] < 1 || t.shape[1] > max_ranks)
      throw FileError(fmt::format("{}: tensor '{}' is of {} ranks; allowed: 1 to {}", arguments.in, t.name,
                                  t.shape[1], max_ranks));
    if (t.shape[0] > 0 && t.shape[2] > 0) groups.emplace(t.shape[0], t.shape[1]);
  }
  std::vector<Buffer<float>> means;
  std::uint64_t wire = 0;
  std::uint64_t fp32 = 0;
  for (const StoredTensor& t : stored) {
    means.emplace_back(static_cast<std::size_t>(t.shape[0] * t.shape[2]));
    wire += wire_bytes({t.name, TensorKind::bias, {t.shape[2]}, t.shape[2], 0}, codec,
                       static_cast<int>(t.shape[1]));
    fp32 += 4 * static_cast<std::uint64_t>(t.shape[2]);
  }
  for (const Group& group : groups)
    exchange_group(group, stored, codec, static_cast<std::uint32_t>(arguments.seed), means);

  std::vector<StoredTensor> out;
  for (std::size_t t = 0; t < stored.size(); ++t)
    out.push_back({stored[t].name, {stored[t].shape[0], stored[t].shape[2]}, means[t]});
  const auto write = [&](const std::string& fresh) {
    write_safetensors(fresh, out, {{"codec", to_text(codec)}, {"seed", std::to_string(arguments.seed)}});
  };
  replace_file(target, write, unlikely_suffix);
  return fmt::format("{}: {} tensors, {}, one encoded copy {} bytes ({:.2f}x less than float32)\n",
                     arguments.out, stored.size(), to_text(codec), wire,
                     static_cast<double>(fp32) / static_cast<double>(std::max<std::uint64_t>(1, wire)));
}

}  // namespace lpsgd
