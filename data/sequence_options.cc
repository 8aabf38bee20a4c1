#include "data/sequence_options.h"

namespace lpsgd {

void fields(config::Visitor& v, SpeechOptions& o) {
  v.choice("features", o.features,
           {{"filterbank", SpeechFeatures::filterbank}, {"cepstral", SpeechFeatures::cepstral}},
           "the 33 features of a frame; filterbank: logarithms of mel filters' powers; cepstral: 13 cepstral "
           "coefficients, their 13 differences, and 7 differences of these");
  v.field("context", o.context, "so many frames on either side of a frame belong to the network's input",
          {.min = 0, .max = 100});
  v.choice("byte_order", o.byte_order,
           {{"auto", ByteOrder::automatic}, {"little", ByteOrder::little}, {"big", ByteOrder::big}},
           "of the recordings' 16 bit samples; auto: the order in which neighbouring samples differ less");
  v.field("alignment", o.alignment, "an HTK master label file in the data set's folder: each frame's state");
  v.field("states", o.states, "the file there that lists the states; a frame's label is its state's number");
  v.field("held_out", o.held_out, "recordings, or speakers with all theirs, that make the test split");
}

void fields(config::Visitor& v, TextOptions& o) {
  v.choice("unit", o.unit, {{"words", TextUnit::words}, {"characters", TextUnit::characters}},
           "what a token is: a word between spaces or tabs, or a UTF-8 character");
  v.field("train", o.train,
          "the training text, a file in data.root; `ptb` and `wikitext2` have default names");
  v.field("valid", o.valid, "the validation text");
  v.field("test", o.test, "the test text, read with `evaluate: test` only");
  v.choice("evaluate", o.evaluate, {{"valid", TextSplit::valid}, {"test", TextSplit::test}},
           "the text that evaluations use");
  v.field("vocabulary", o.vocabulary,
          "a file with one token a line; empty: the tokens of the training text, the most frequent first");
  v.field("vocabulary_size", o.vocabulary_size,
          "so many tokens: the most frequent of the training text, and `unknown`, which stands for the rest; "
          "0: all",
          {.min = 0, .max = 100'000'000});
  v.field("eos", o.eos, "the token behind each line; empty: none");
  v.field("unknown", o.unknown,
          "replaces tokens outside the vocabulary; if it is itself outside, such tokens are an error");
}

}  // namespace lpsgd
