// MATLAB files that are malformed in one place, made element by element.
#include <gtest/gtest.h>

#include <cstring>

#include "data/mat_file.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using Bytes = std::vector<std::uint8_t>;

template <class T>
Bytes raw(std::initializer_list<T> values) {
  Bytes out(values.size() * sizeof(T));
  std::memcpy(out.data(), std::data(values), out.size());
  return out;
}

Bytes text(const std::string& from) {
  return {from.begin(), from.end()};
}

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

enum Type : std::uint32_t { int8 = 1, int32 = 5, uint32 = 6, float64 = 9, matrix_type = 14, utf8 = 16 };
enum Class : std::uint32_t { structure = 2, characters = 4, real = 6 };

Bytes element(std::uint32_t type, const Bytes& data) {
  Bytes out = joined({raw<std::uint32_t>({type, static_cast<std::uint32_t>(data.size())}), data});
  out.resize((out.size() + 7) / 8 * 8);
  return out;
}

Bytes matrix(std::uint32_t kind, const std::string& name, const Bytes& values, std::int32_t rows = 1,
             std::int32_t columns = 1) {
  return element(matrix_type, joined({element(uint32, raw<std::uint32_t>({kind, 0})),
                                      element(int32, raw<std::int32_t>({rows, columns})),
                                      element(int8, text(name)), values}));
}

std::string error(const Bytes& content) {
  Bytes file(128);
  std::memcpy(&file[124], "\0\1IM", 4);
  file.insert(file.end(), content.begin(), content.end());
  const std::string message = error_of([&] { parse_meta_mat(file, "m"); });
  const std::string begin = "m: malformed MATLAB file: ";
  return message.starts_with(begin) ? message.substr(begin.size()) : message;
}

/// The array `synsets` with one entry.
Bytes synsets(const Bytes& id, const Bytes& wnid) {
  Bytes names = text("ILSVRC2012_ID");
  names.resize(16);
  names.insert(names.end(), {'W', 'N', 'I', 'D'});
  names.resize(32);
  return matrix(structure, "synsets",
                joined({element(int32, raw<std::int32_t>({16})), element(int8, names), id, wnid}));
}

const Bytes good_id = matrix(real, "", element(float64, raw<double>({7})));
const Bytes good_wnid = matrix(characters, "", element(utf8, text("n01440764")));

TEST(MatFileErrors, TheFileThatTheyAreMadeOfIsGood) {
  EXPECT_EQ(error(synsets(good_id, good_wnid)), "no error of this type");
}

TEST(MatFileErrors, CutElements) {
  EXPECT_EQ(error({1, 2}), "a value is cut");
  EXPECT_EQ(error(raw<std::uint32_t>({0x00050001, 0})), "a small element is cut");
  EXPECT_EQ(error(raw<std::uint32_t>({0x00040001})), "a small element is cut");
  EXPECT_EQ(error(raw<std::uint32_t>({matrix_type})), "an element is cut");
  EXPECT_EQ(error(raw<std::uint32_t>({matrix_type, 8})), "truncated");
}

TEST(MatFileErrors, WrongFields) {
  const Bytes number = element(float64, raw<double>({1}));
  EXPECT_EQ(error(synsets(number, good_wnid)), "a matrix is missing");
  EXPECT_EQ(error(synsets(matrix(real, "", number, 0x10000, 0x10000), good_wnid)), "a matrix is too large");
  EXPECT_EQ(error(synsets(good_wnid, good_wnid)), "an ILSVRC2012_ID is no number");
  EXPECT_EQ(error(synsets(matrix(real, "", number, 2), good_wnid)), "an ILSVRC2012_ID is no number");
  for (const Bytes& wrong : {element(float64, raw<double>({1.5})), element(utf8, text("1"))})
    EXPECT_EQ(error(synsets(matrix(real, "", wrong), good_wnid)), "an ILSVRC2012_ID is no whole number");
  EXPECT_EQ(error(synsets(good_id, good_id)), "a WNID is no text");
  EXPECT_EQ(error(synsets(good_id, matrix(characters, "", number))), "a WNID is no text");
}

TEST(MatFileErrors, WrongNamesOfFields) {
  const auto named = [](std::int32_t length, const std::string& names) {
    return error(matrix(structure, "synsets",
                        joined({element(int32, raw<std::int32_t>({length})), element(int8, text(names))})));
  };
  EXPECT_EQ(named(0, "WNID"), "the names of fields are cut");
  EXPECT_EQ(named(3, "WNID"), "the names of fields are cut");
  EXPECT_EQ(named(4, "WNID"), "`synsets` has no fields ILSVRC2012_ID and WNID");
}

}  // namespace
}  // namespace lpsgd
