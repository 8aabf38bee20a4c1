// libFuzzer: the lists of ImageNet's labels. The first byte picks the ground truth, the list of classes,
// Kaggle's list or meta.mat.
#include "core/error.h"
#include "data/imagenet_labels.h"
#include "data/mat_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
        parse_ground_truth(text, "a", {{1, "n01440764"}, {2, "n01443537"}, {12, "n02119789"}});
        break;
      case 1:
        parse_synset_list(text, "a");
        break;
      case 2:
        parse_kaggle_list(text, "a");
        break;
      default:
        parse_meta_mat({data + 1, size - 1}, "a");
    }
  } catch (const FileError&) {
  }
  return 0;
}
