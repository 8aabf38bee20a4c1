#include "tests/comm/message_coder_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "comm/exchange_tensor.h"
#include "comm/message_coder.h"
#include "core/error.h"

namespace lpsgd::message_coder_cases {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;  // of tensors

/// A rank's gradients and its coder, and what carries the messages.
class Rank {
 public:
  Rank(Transport& transport, const ExchangeSetup& setup, Device device)
      : transport_(transport),
        setup_(setup),
        gradients_(device),
        messages_(device),
        arena_(device, setup.arena),
        coder_(setup.tensors, setup.codecs, options(device)) {}

  MessageCoder& coder() { return coder_; }

  std::vector<std::size_t> add(const Buckets& buckets) {
    std::vector<std::size_t> numbers;
    for (const std::vector<std::size_t>& tensors : buckets)
      numbers.push_back(coder_.add_bucket(tensors, places(tensors)));
    return numbers;
  }

  /// The gradients lie in another arena from now on.
  void move_gradients(const std::vector<std::size_t>& numbers, const Buckets& buckets) {
    arena_ = DeviceBuffer<float>(arena_.device(), setup_.arena);
    for (std::size_t i = 0; i < numbers.size(); ++i) coder_.move_bucket(numbers[i], places(buckets[i]));
  }

  /// The means of one step. A bucket is encoded before the one before it is reduced, and the one before that
  /// is decoded.
  std::vector<float> step(std::uint32_t step, const std::vector<std::size_t>& buckets,
                          const std::vector<float>& own) {
    copy_bytes(arena_.data(), own.data(), own.size() * sizeof(float), gradients_);
    coder_.begin(step);
    const std::size_t n = buckets.size();
    for (std::size_t b = 0; b < n + 2; ++b) {
      if (b < n) {
        coder_.encode(buckets[b]);
        move(buckets[b], 1);
      }
      if (b >= 1 && b - 1 < n) {
        coder_.reduce(buckets[b - 1]);
        move(buckets[b - 1], 2);
      }
      if (b >= 2) coder_.decode(buckets[b - 2]);
    }
    coder_.end();
    std::vector<float> means(setup_.arena);
    copy_bytes(means.data(), arena_.data(), means.size() * sizeof(float), gradients_);
    gradients_.synchronize();
    return means;
  }

 private:
  std::vector<float*> places(const std::vector<std::size_t>& tensors) {
    std::vector<float*> gradients;
    for (const std::size_t t : tensors) gradients.push_back(arena_.data() + setup_.tensors[t].offset);
    return gradients;
  }

  MessageCoder::Options options(Device device) const {
    MessageCoder::Options options;
    options.rank = transport_.rank();
    options.ranks = transport_.size();
    options.seed = setup_.seed;
    options.device = device;
    options.gradients = gradients_;
    options.messages = messages_;
    return options;
  }

  /// Through host memory, on the messages' stream.
  void move(std::size_t bucket, int round) {
    const auto tag = static_cast<int>(2 * bucket) + round;
    const int rank = transport_.rank();
    std::vector<std::vector<std::byte>> sent, received;
    std::vector<std::span<std::byte>> arrive;
    std::vector<Transport::Request> requests;
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer == rank) continue;
      const auto out = round == 1 ? coder_.outgoing(bucket, peer) : coder_.mean(bucket, rank);
      copy_bytes(sent.emplace_back(out.size()).data(), out.data(), out.size(), messages_);
      messages_.synchronize();
      arrive.push_back(round == 1 ? coder_.incoming(bucket, peer) : coder_.mean(bucket, peer));
      received.emplace_back(arrive.back().size());
      if (!out.empty()) requests.push_back(transport_.isend(sent.back(), peer, tag));
      if (!received.back().empty()) requests.push_back(transport_.irecv(received.back(), peer, tag));
    }
    transport_.wait(requests);
    for (std::size_t i = 0; i < arrive.size(); ++i)
      copy_bytes(arrive[i].data(), received[i].data(), arrive[i].size(), messages_);
    messages_.synchronize();
  }

  Transport& transport_;
  const ExchangeSetup& setup_;
  const Stream gradients_, messages_;
  DeviceBuffer<float> arena_;
  MessageCoder coder_;
};

/// The setup's tensors, in the order of announcement, `size` to a bucket. Buckets without values are left
/// out.
Buckets cut(const ExchangeSetup& setup, std::size_t size) {
  Buckets buckets;
  for (std::size_t i = 0; i < setup.order.size(); i += size) {
    const auto first = setup.order.begin() + static_cast<std::ptrdiff_t>(i);
    std::vector<std::size_t> tensors(
        first, first + static_cast<std::ptrdiff_t>(std::min(size, setup.order.size() - i)));
    const bool empty =
        std::ranges::all_of(tensors, [&](std::size_t t) { return setup.tensors[t].elements == 0; });
    if (!empty) buckets.push_back(std::move(tensors));
  }
  return buckets;
}

void expect_equal(const ExchangeSetup& setup, const std::vector<float>& means,
                  const std::vector<float>& expected, std::uint32_t step, const Transport& transport) {
  for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
    const TensorInfo& tensor = setup.tensors[t];
    if (tensor.elements == 0) continue;
    const auto offset = static_cast<std::size_t>(tensor.offset);
    EXPECT_EQ(std::memcmp(&means[offset], &expected[offset],
                          static_cast<std::size_t>(tensor.elements) * sizeof(float)),
              0)
        << tensor.name << " with " << to_text(setup.codecs[t]) << ", step " << step << ", rank "
        << transport.rank() << " of " << transport.size();
  }
}

}  // namespace

void equals_reference(Transport& transport, const ExchangeSetup& setup,
                      const std::vector<std::vector<float>>& expected, Device device) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}, setup.order.size()}) {
    Rank rank(transport, setup, device);
    std::vector<std::size_t> buckets = rank.add(cut(setup, size));
    for (std::uint32_t step = 0; step < expected.size(); ++step) {
      if (step == 1) {  // as DistributedDataParallel does after the first backward pass
        for (const std::size_t bucket : buckets) rank.coder().drop_bucket(bucket);
        buckets = rank.add(cut(setup, size + 1));
      }
      if (step == 2 && !device.is_cuda()) rank.move_gradients(buckets, cut(setup, size + 1));
      const auto means = rank.step(step, buckets, setup.gradients(transport.rank(), step));
      expect_equal(setup, means, expected[step], step, transport);
    }
  }
}

void residuals_continue(Transport& transport, const std::string& codec, Device device) {
  const ExchangeSetup setup = make_setup(codec);
  const auto expected = reference_means(setup, {transport.size()}, 4);
  Rank first(transport, setup, device), second(transport, setup, device);
  const auto buckets = first.add(cut(setup, 2));
  for (std::uint32_t step = 0; step < 2; ++step)
    first.step(step, buckets, setup.gradients(transport.rank(), step));
  for (std::size_t t = 0; t < setup.tensors.size(); ++t)
    for (const int round : {1, 2}) {
      std::vector<float> residual = first.coder().residual(t, round);
      EXPECT_EQ(residual.size(), second.coder().residual_size(t, round));
      second.coder().set_residual(t, round, residual);
      residual.push_back(0);
      EXPECT_THROW(second.coder().set_residual(t, round, residual), Error);
    }
  const auto others = second.add(cut(setup, 4));
  for (std::uint32_t step = 2; step < 4; ++step)
    expect_equal(setup, second.step(step, others, setup.gradients(transport.rank(), step)), expected[step],
                 step, transport);
}

void goes_on_after_a_nan(Transport& transport, const std::string& codec, Device device) {
  const ExchangeSetup setup = make_setup(codec);
  const auto largest = static_cast<std::size_t>(
      std::ranges::max_element(setup.tensors, {}, &TensorInfo::elements) - setup.tensors.begin());
  const auto at = static_cast<std::size_t>(setup.tensors[largest].offset);
  const bool carried = make_codec(setup.codecs[largest], setup.tensors[largest])->carries_non_finite();
  Rank rank(transport, setup, device), other(transport, setup, device);
  const auto buckets = rank.add(cut(setup, 2)), others = other.add(cut(setup, 2));
  for (std::uint32_t step = 0; step < 4; ++step) {
    std::vector<float> own = setup.gradients(transport.rank(), step);
    if (step == 1) {  // `other` goes through it without the tensor that holds the NaN
      auto without = own;
      std::fill_n(without.begin() + static_cast<std::ptrdiff_t>(at), setup.tensors[largest].elements, 0.0f);
      other.step(step, others, without);
      if (transport.rank() == transport.size() - 1) own[at] = std::numeric_limits<float>::quiet_NaN();
      const auto means = rank.step(step, buckets, own);
      EXPECT_TRUE(!carried || std::isnan(means[at])) << "rank " << transport.rank();
      for (const int round : {1, 2}) {
        const std::vector<float> residual = rank.coder().residual(largest, round);
        EXPECT_TRUE(std::ranges::all_of(residual, [](float v) { return std::isfinite(v); }));
        other.coder().set_residual(largest, round, residual);
      }
      continue;
    }
    const auto means = rank.step(step, buckets, own);
    expect_equal(setup, means, other.step(step, others, own), step, transport);
    EXPECT_TRUE(std::ranges::all_of(means, [](float v) { return std::isfinite(v); })) << "step " << step;
  }
}

void bytes_are_those_announced(Transport& transport, const std::string& codec, Device device) {
  const ExchangeSetup setup = make_setup(codec);
  Rank rank(transport, setup, device);
  std::uint64_t sent = 0;
  for (const std::size_t bucket : rank.add(cut(setup, 2)))
    for (int peer = 0; peer < transport.size(); ++peer)
      if (peer != transport.rank())
        sent +=
            rank.coder().outgoing(bucket, peer).size() + rank.coder().mean(bucket, transport.rank()).size();
  std::uint64_t encoded = 0;
  for (std::size_t t = 0; t < setup.tensors.size(); ++t)
    encoded += wire_bytes(setup.tensors[t], setup.codecs[t], transport.size());
  const std::vector<std::uint64_t> all = transport.all_gather(sent);
  EXPECT_EQ(std::accumulate(all.begin(), all.end(), std::uint64_t{0}),
            2 * static_cast<std::uint64_t>(transport.size() - 1) * encoded);
}

}  // namespace lpsgd::message_coder_cases
