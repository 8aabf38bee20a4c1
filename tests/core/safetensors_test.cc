// Safetensors: round trip, and refusal of every kind of malformed file.
#include "core/safetensors.h"

#include <cmath>
#include <cstring>

#include "core/file.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

std::string file_with_header(const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, '\0');
}

class Safetensors : public TemporaryFolder {
 protected:
  std::string error_of(const std::string& bytes) const {
    const std::string file = write("bad.safetensors", bytes);
    const std::string error = lpsgd::error_of([&] { SafetensorsFile{file}; });
    EXPECT_THAT(error, testing::StartsWith(file + ": "));
    return error;
  }
};

TEST_F(Safetensors, RoundTrip) {
  const std::string path = this->path("round.safetensors");
  const std::vector<float> a{1, 2, 3, 4, 5, 6};
  const std::vector<float> b{7};
  write_safetensors(path, {{"z", {2, 3}, a}, {"a", {}, b}, {"empty", {0, 4}, {}}}, {{"format", "pt"}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "z");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const StoredTensor& z = file.at("z", {2, 3});
  EXPECT_THAT(std::vector<float>(z.values.begin(), z.values.end()), testing::ElementsAreArray(a));
  EXPECT_EQ(file.at("a", {}).values[0], 7);
  EXPECT_EQ(file.find("q"), nullptr);
  EXPECT_THROW(file.at("q", {}), FileError);
  EXPECT_THROW(file.at("z", {3, 2}), FileError);
}

// As PyTorch writes a network in half precision, with its counters of batches.
TEST_F(Safetensors, HalvesAreWidened) {
  std::string text = file_with_header(
      R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"n.num_batches_tracked":{"dtype":"I64","shape":[],)"
      R"("data_offsets":[0,8]},"h":{"dtype":"F16","shape":[63488],"data_offsets":[12,126988]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[126988,126994]},"g":{"dtype":"F32","shape":[2],)"
      R"("data_offsets":[126994,127002]}} )",
      0);
  const auto append = [&](auto value) { text.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  append(std::int64_t{7});
  append(0.1f);
  std::vector<float> expected;  // every number, by its definition
  for (int sign = 0; sign < 2; ++sign)
    for (int exponent = 0; exponent < 31; ++exponent)
      for (int mantissa = 0; mantissa < 1024; ++mantissa) {
        append(static_cast<std::uint16_t>(sign << 15 | exponent << 10 | mantissa));
        const double magnitude =
            exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
        expected.push_back(static_cast<float>(sign ? -magnitude : magnitude));
      }
  for (const unsigned bits : {0x3f80u, 0xc020u, 0x0001u}) append(static_cast<std::uint16_t>(bits));
  for (const float value : {2.5f, -0.1f}) append(value);  // at no multiple of four bytes
  const SafetensorsFile file(write("half.safetensors", text));
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.at("f", {1}).values[0], 0.1f);
  const std::span<const float> halves = file.at("h", {63488}).values;
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_TRUE(halves[i] == expected[i] && std::signbit(halves[i]) == std::signbit(expected[i])) << i;
  EXPECT_THAT(file.at("g", {2}).values, testing::ElementsAre(2.5f, -0.1f));
  EXPECT_THAT(file.at("b", {3}).values, testing::ElementsAre(1.0f, -2.5f, std::ldexp(1.0f, -133)));
}

TEST_F(Safetensors, RefusesMalformedFiles) {
  using testing::HasSubstr;
  const auto one = [](const std::string& fields) { return R"({"t":{)" + fields + "}}   "; };
  EXPECT_THAT(error_of(""), HasSubstr("too few"));
  EXPECT_THAT(error_of(std::string(8, '\xff')), HasSubstr("past the end"));
  EXPECT_THAT(error_of(file_with_header("{]      ", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(file_with_header("[]      ", 0)), HasSubstr("not an object"));
  std::string h = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,12])");
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 12)), HasSubstr("does not fit"));
  EXPECT_THAT(error_of(file_with_header(h, 4)), HasSubstr("lies at bytes"));
  h = one(R"("dtype":"F64","shape":[2],"data_offsets":[0,16])");
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 16)), HasSubstr("is F64; F32, F16 and BF16 are read"));
  h = one(R"("dtype":"F16","shape":[2],"data_offsets":[0,8])");
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 8)), HasSubstr("does not fit"));
  h = one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])");
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 4)), HasSubstr("shape"));
  h = one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])");
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 4)), HasSubstr("does not fit"));
  h = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 8)), HasSubstr("duplicate"));
  h = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"u":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 4)), HasSubstr("overlap"));
  h = one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])");
  h.resize(h.size() + (8 - h.size() % 8) % 8, ' ');
  EXPECT_THAT(error_of(file_with_header(h, 8)), HasSubstr("cover 4 of 8"));
  EXPECT_THAT(error_of(file_with_header(std::string(2000, '[') + std::string(2000, ']'), 0)),
              HasSubstr("nested too deeply"));
}

TEST_F(Safetensors, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::vector<float> values(1000);
  EXPECT_THAT(lpsgd::error_of([&] {
                write_safetensors("/dev/full", {{"t", {1000}, values}});
              }),
              testing::StartsWith("/dev/full: cannot be"));
}

TEST_F(Safetensors, QuotesNamesWithoutTheirControlCharacters) {
  std::string h = R"({"a\u001b[2J\n":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}})";
  EXPECT_THAT(error_of(file_with_header(h, 2)), testing::HasSubstr("tensor 'a\\x1b[2J\\x0a' is I16"));
}

// Otherwise a checkpoint of a network of many layers could be written and not resumed.
TEST_F(Safetensors, WhatIsWrittenCanBeRead) {
  const auto tensors = [](int count) {
    std::vector<StoredTensor> out;
    for (int i = 0; i < count; ++i) out.push_back({fmt::format("residual1.layer{}.conv.weight", i), {0}, {}});
    return out;
  };
  const std::string path = this->path("count.safetensors");
  write_safetensors(path, tensors(49'999), {{"format", "pt"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), 49'999u);
  EXPECT_NE(file.find("residual1.layer49998.conv.weight"), nullptr);
  EXPECT_EQ(file.find("residual1.layer49999.conv.weight"), nullptr);
  EXPECT_THROW(write_safetensors(path, tensors(50'000), {{"format", "pt"}}), FileError);
}

TEST_F(Safetensors, AHeaderIsBounded) {
  std::string h = "{";
  for (int i = 0; i < 5'000; ++i)
    h += fmt::format("{}\"t{}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", i ? "," : "", i);
  EXPECT_EQ(SafetensorsFile(write("many.safetensors", file_with_header(h + "}", 0))).tensors().size(),
            5'000u);
  EXPECT_THAT(error_of(file_with_header("{\"a\":" + std::string(300'000, '['), 0)),
              testing::HasSubstr("nested too deeply"));
}

}  // namespace
}  // namespace lpsgd
