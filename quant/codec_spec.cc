// The table of codecs, and their configuration as text.
#include <fmt/format.h>

#include "core/error.h"
#include "quant/codec_table.h"

namespace lpsgd {

namespace {

using Kind = CodecSpec::Kind;

constexpr std::int64_t default_bucket = -2;  // the key is absent

std::int64_t no_bucket(const CodecSpec&) {
  return CodecSpec::whole_tensor;
}
std::int64_t onebit_bucket(const CodecSpec&) {
  return 64;
}
std::int64_t qsgd_bucket(const CodecSpec& spec) {
  return spec.bits == 2 ? 128 : spec.bits == 16 ? 8192 : 512;
}

void no_options(config::Visitor&, CodecSpec&) {}
void qsgd_options(config::Visitor& v, CodecSpec& spec) {
  v.choice<std::int64_t>("bits", spec.bits, {{"2", 2}, {"4", 4}, {"8", 8}, {"16", 16}}, "bits a value");
  v.choice<CodecSpec::Norm>("norm", spec.norm, {{"max", CodecSpec::Norm::max}, {"l2", CodecSpec::Norm::l2}},
                            "what a bucket is scaled by");
  v.choice<CodecSpec::Levels>("levels", spec.levels, {{"sign_magnitude", CodecSpec::Levels::sign_magnitude}},
                              "where the levels lie");
}

// clang-format off
constexpr CodecRow table[] = {
  // kind         name      bucketed columns  feedback bucket         {scales, bits}                                              options
  {Kind::none,   "none",    false,   false,   false,   no_bucket,     [](const CodecSpec&) { return CodecSize{0, 32}; },          no_options},
  {Kind::fp16,   "fp16",    false,   false,   false,   no_bucket,     [](const CodecSpec&) { return CodecSize{0, 16}; },          no_options},
  {Kind::bf16,   "bf16",    false,   false,   false,   no_bucket,     [](const CodecSpec&) { return CodecSize{0, 16}; },          no_options},
  {Kind::onebit, "onebit",  true,    true,    true,    onebit_bucket, [](const CodecSpec&) { return CodecSize{2, 1}; },           no_options},
  {Kind::qsgd,   "qsgd",    true,    false,   false,   qsgd_bucket,   [](const CodecSpec& spec) { return CodecSize{1, spec.bits}; }, qsgd_options},
};
// clang-format on

std::string allowed_buckets(const CodecRow& row) {
  return row.columns ? "a multiple of 32, 'tensor' or 'column'" : "a multiple of 32 or 'tensor'";
}

std::int64_t parse_bucket(const config::Value& value, const std::string& path, const CodecRow& row) {
  if (value.is_scalar()) {
    if (value.scalar == "tensor") return CodecSpec::whole_tensor;
    if (value.scalar == "column" && row.columns) return CodecSpec::column;
    try {
      return config::to_integer(value, path, {.min = 32, .max = 0x1p31, .multiple_of = 32});
    } catch (const ConfigError&) {
      config::fail(value.origin, path,
                   fmt::format("'{}' is not a bucket of {}; allowed: {}", value.scalar, row.name,
                               allowed_buckets(row)));
    }
  }
  config::fail(value.origin, path, fmt::format("expected {}", allowed_buckets(row)));
}

config::Value write_bucket(std::int64_t bucket) {
  if (bucket == CodecSpec::whole_tensor) return config::Value::plain("tensor");
  if (bucket == CodecSpec::column) return config::Value::plain("column");
  return config::Value::plain(fmt::format("{}", bucket));
}

/// The row that the key `kind` names, if it names one; choice() reports what is wrong otherwise.
const CodecRow* named_row(const config::Value& value) {
  const config::Value* kind = value.find("kind");
  if (kind == nullptr || !kind->is_scalar()) return nullptr;
  for (const CodecRow& row : table)
    if (kind->scalar == row.name) return &row;
  return nullptr;
}

void declare(config::Visitor& v, CodecSpec& spec) {
  std::vector<const char*> names;
  std::size_t index = 0;
  for (const CodecRow& row : table) {
    if (row.kind == spec.kind) index = names.size();
    names.push_back(row.name);
  }
  v.required();
  v.choice("kind", index, std::span<const char* const>(names), "the codec");
  const CodecRow& row = table[index];
  spec.kind = row.kind;
  row.options(v, spec);
  if (!row.bucketed) return;
  v.custom(
      "bucket", allowed_buckets(row).c_str(), "values that share a scale",
      [&](const config::Value& value, const std::string& path) {
        spec.bucket = parse_bucket(value, path, row);
      },
      [&] { return write_bucket(spec.bucket); });
  v.field("error_feedback", spec.error_feedback, "keep what coding loses and add it to the next gradient");
}

}  // namespace

std::span<const CodecRow> codec_table() {
  return table;
}

const CodecRow& codec_row(CodecSpec::Kind kind) {
  for (const CodecRow& row : table)
    if (row.kind == kind) return row;
  throw Error("internal error: a codec that the table does not list");
}

CodecSpec parse_codec(const config::Value& value, const std::string& path) {
  if (value.is_scalar()) {  // a bare word is {kind: word}
    config::Value map = config::Value::map();
    map.origin = value.origin;
    map.set("kind", value);
    return parse_codec(map, path);
  }
  if (value.is_null()) config::fail(value.origin, path, "expected a codec, such as {kind: qsgd, bits: 4}");
  config::Reader reader(value, path);
  CodecSpec spec;
  if (const CodecRow* row = named_row(value)) {
    spec.error_feedback = row->error_feedback;
    spec.bucket = default_bucket;
  }
  declare(reader, spec);
  reader.finish();
  if (spec.bucket == default_bucket) spec.bucket = codec_row(spec.kind).bucket(spec);
  return spec;
}

config::Value write_codec(const CodecSpec& spec) {
  config::Writer writer;
  CodecSpec copy = spec;
  declare(writer, copy);
  return writer.take();
}

const char* kind_text(const CodecSpec& spec) {
  return codec_row(spec.kind).name;
}

std::string to_text(const CodecSpec& spec) {
  std::string out;
  for (const config::Value::Entry& e : write_codec(spec).entries)
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", e.key, e.value.scalar);
  return "{" + out + "}";
}

}  // namespace lpsgd
