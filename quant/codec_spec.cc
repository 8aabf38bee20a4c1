// Reads and writes codecs in the configuration, with the options of the table's rows.
#include <fmt/format.h>

#include "core/config_shape.h"
#include "core/error.h"
#include "quant/codec_table.h"

namespace lpsgd {

namespace {

std::string allowed_buckets(const CodecRow& row) {
  return row.columns ? "a multiple of 32, 'tensor' or 'column'" : "a multiple of 32 or 'tensor'";
}

constexpr config::Range bucket_values{.min = 32, .max = 0x1p31, .multiple_of = 32};

config::Shape bucket_shape(const CodecRow& row) {
  std::vector<std::string> words{"tensor"};
  if (row.columns) words.emplace_back("column");
  return config::Shape::choice({config::Shape::word(words), config::Shape::integer(bucket_values)});
}

BucketSize parse_bucket(const config::Value& value, const std::string& path, const CodecEntry& entry) {
  if (value.is_scalar()) {
    if (value.scalar == "tensor") return BucketSize::tensor;
    if (value.scalar == "column" && entry.row.columns) return BucketSize::column;
    try {
      return config::to_integer(value, path, bucket_values);
    } catch (const ConfigError&) {
      config::fail(value.origin, path,
                   fmt::format("'{}' is not a bucket of {}; allowed: {}", value.scalar, entry.name,
                               allowed_buckets(entry.row)));
    }
  }
  config::fail(value.origin, path, fmt::format("expected {}", allowed_buckets(entry.row)));
}

config::Value write_bucket(BucketSize bucket) {
  if (bucket == BucketSize::tensor) return config::Value::plain("tensor");
  if (bucket == BucketSize::column) return config::Value::plain("column");
  return config::Value::plain(fmt::format("{}", bucket.count));
}

/// Declares the keys of a codec. In reading, `spec` becomes the kind's defaults once `kind` is known.
void declare(config::Visitor& v, CodecSpec& spec, bool reading) {
  std::vector<const char*> names;
  std::size_t index = 0;
  for (const CodecEntry& entry : codec_table()) {
    if (entry.name == spec.kind) index = names.size();
    names.push_back(entry.name);
  }
  v.required();
  v.choice("kind", index, std::span<const char* const>(names), "the codec's kind");
  const CodecEntry& entry = codec_table()[index];
  const CodecRow& row = entry.row;
  if (reading) spec = {entry.name, row.bucket, row.error_feedback, entry.defaults};
  if (row.options) row.options(v, spec.options);
  if (reading && row.more_defaults) row.more_defaults(spec);
  if (!row.bucketed) return;
  v.shape([&] { return bucket_shape(row); });
  v.custom(
      "bucket", allowed_buckets(row).c_str(),
      "the number of consecutive values that are encoded together, with a scale if the codec has one",
      [&](const config::Value& value, const std::string& path) {
        spec.bucket = parse_bucket(value, path, entry);
      },
      [&] { return write_bucket(spec.bucket); });
  v.field("error_feedback", spec.error_feedback,
          "keep what coding loses (the residual) and add it to the next step's gradient");
}

}  // namespace

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
  declare(reader, spec, true);
  reader.finish();
  if (const auto conflict = find_conflict(spec)) {
    const config::Value* at = value.find(conflict->key);
    config::fail(at ? at->origin : value.origin, fmt::format("{}.{}", path, conflict->key),
                 conflict->message);
  }
  return spec;
}

config::Value write_codec(const CodecSpec& spec) {
  config::Writer writer;
  CodecSpec copy = spec;
  declare(writer, copy, false);
  return writer.take();
}

config::Shape codec_shape() {
  std::vector<config::Shape> shapes(1);
  for (const CodecEntry& entry : codec_table()) {
    CodecSpec spec = parse_codec(config::Value::plain(entry.name), "");
    config::Shape shape = config::Shape::map([&](config::Visitor& v) { declare(v, spec, false); });
    shape.title = fmt::format("kind: {}", entry.name);
    shape.fields[0].shape.words = {entry.name};
    shapes[0].words.emplace_back(entry.name);
    shapes.push_back(std::move(shape));
  }
  shapes[0].kind = config::Shape::Kind::word;
  config::Shape out = config::Shape::choice(std::move(shapes));
  out.name = "codec";
  return out;
}

std::string to_text(const CodecSpec& spec) {
  std::string out;
  for (const config::Value::Entry& e : write_codec(spec).entries)
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", e.key, e.value.scalar);
  return "{" + out + "}";
}

}  // namespace lpsgd
