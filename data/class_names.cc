#include "data/class_names.h"

#include <iterator>
#include <map>
#include <sstream>

namespace lpsgd {

namespace {

// CIFAR's names are those of batches.meta.txt and fine_label_names.txt, which come with the files.
const std::map<std::string, const char*> known_names{
    {"cifar10", "airplane automobile bird cat deer dog frog horse ship truck"},
    {"cifar100",
     "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
     "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
     "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
     "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid "
     "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
     "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
     "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
     "wardrobe whale willow_tree wolf woman worm"},
    {"fashion_mnist", "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle_boot"},
    {"mnist", "0 1 2 3 4 5 6 7 8 9"},
    {"shapes", "disc ring half_disc square frame triangle cross star ell bars"},
};

}  // namespace

std::vector<std::string> class_names(const std::string& dataset, const Dataset* opened) {
  if (const auto* images = dynamic_cast<const ImageDataset*>(opened))
    if (std::vector<std::string> names = images->class_names(); !names.empty()) return names;
  const auto found = known_names.find(dataset);
  if (found == known_names.end()) return {};
  std::istringstream words(found->second);
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace lpsgd
