// The labels of ImageNet's validation images, as they are distributed.
#pragma once

#include <map>
#include <string>

namespace lpsgd {

/// The WNID ("n01440764") of every validation image by its name without extension.
struct ValidationLabels {
  std::string path;  // of the list
  std::map<std::string, std::string> wnids;
};

/// Looks in `root` for, in this order:
/// - ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt, the development kit's: one
///   ILSVRC2012_ID a line, in the order of the images' numbers. meta.mat beside it has each ID's WNID. Both
///   files may also lie in `root` itself. Instead of meta.mat there may be synsets.txt, one WNID a line in
///   the order of the IDs. (A list in the order of WNIDs is of another origin, and refused.)
/// - LOC_val_solution.csv, Kaggle's: "ILSVRC2012_val_00048981,n03995372 85 1 499 272" a line.
/// Throws FileError, which begins with a path, if there is no list, or if it is malformed.
ValidationLabels read_validation_labels(const std::string& root);

// The parts, of which `path` is for messages. `wnid_of_id` is not empty.
std::map<std::string, std::string> parse_ground_truth(const std::string& text, const std::string& path,
                                                      const std::map<std::int64_t, std::string>& wnid_of_id);
std::map<std::int64_t, std::string> parse_synset_list(const std::string& text, const std::string& path);
std::map<std::string, std::string> parse_kaggle_list(const std::string& text, const std::string& path);

/// Whether `name` is "n" and eight digits.
bool is_wnid(const std::string& name);

}  // namespace lpsgd
