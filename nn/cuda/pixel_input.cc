// Images from bytes to the network's input (pixel_input.cu).
#include <algorithm>

#include "nn/cuda/feed.h"

namespace lpsgd::cuda {
namespace {

class PixelOp final : public PixelInput {
 public:
  PixelOp(Context& context, InputFeed& feed, const PixelDesc& desc)
      : context_(context),
        feed_(feed),
        type_(desc.type),
        output_(desc.output),
        sizes_{desc.batch,
               static_cast<int>(desc.stored.height),
               static_cast<int>(desc.stored.width),
               static_cast<int>(desc.sample.height),
               static_cast<int>(desc.sample.width),
               static_cast<int>(desc.sample.channels)} {
    if (type_ == DataType::f32)
      upload_table<float>(desc.norm);
    else
      upload_table<Bf16>(desc.norm);
  }

  void upload(const Pass&, std::span<const std::uint8_t> pixels, Event* read) override {
    const void* received = feed_.receive(std::as_bytes(pixels), read);
    check(launch_pixels(type_, static_cast<const std::uint8_t*>(received), context_.crops, table_, output_,
                        sizes_, context_.handle()));
    feed_.release();
  }

 private:
  template <class T>
  void upload_table(const Normalization& norm) {
    std::vector<T> host;
    for (const std::array<float, 256>& channel : scaled_bytes(norm))
      for (const float x : channel) host.push_back(narrow<T>(x));
    T* table = context_.array<T>(static_cast<std::int64_t>(host.size()));
    copy_bytes(table, host.data(), host.size() * sizeof(T), context_.stream);
    context_.stream.synchronize();
    table_ = table;
  }

  Context& context_;
  InputFeed& feed_;
  DataType type_;
  void* output_;
  PixelSizes sizes_;
  const void* table_ = nullptr;  // (channels, 256)
};

}  // namespace

std::unique_ptr<PixelInput> make_pixel_input(Context& context, InputFeed& feed, const PixelDesc& desc) {
  return std::make_unique<PixelOp>(context, feed, desc);
}

}  // namespace lpsgd::cuda
