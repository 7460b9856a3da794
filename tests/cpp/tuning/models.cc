#include "tuning/models.h"

namespace horoscale::tuning {
namespace {

// The bias's gradient is ready first. `positions`: how many vectors it is applied to.
Layer Linear(int64_t inputs, int64_t outputs, double positions) {
  return {{outputs, inputs * outputs}, static_cast<double>(inputs * outputs) * positions};
}

Layer Convolution(int64_t inputs, int64_t outputs, double positions) {
  return Linear(9 * inputs, outputs, positions);
}

Layer Norm(int64_t width, double positions) {
  return {{width, width}, static_cast<double>(width) * positions};
}

}  // namespace

int64_t Model::Bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers) {
    for (const int64_t elements : layer.elements) bytes += 4 * elements;
  }
  return bytes;
}

Model Perceptron() {
  constexpr double kSamples = 64;
  return {"perceptron",
          0.130,
          {Linear(1024, 2048, kSamples), Linear(2048, 4096, kSamples), Linear(4096, 1700, kSamples),
           Linear(1700, 10, kSamples)}};
}

Model Convolutions() {
  constexpr double kSamples = 40;
  Model model = {"convolutions", 0.480, {}};
  int64_t before = 3;
  double positions = kSamples * 64 * 64;
  for (const int64_t channels : {32, 64, 128}) {
    for (const int64_t inputs : {before, channels}) {
      model.layers.push_back(Convolution(inputs, channels, positions));
    }
    before = channels;
    positions /= 4;  // pooling
  }
  model.layers.push_back(Linear(8192, 256, kSamples));
  model.layers.push_back(Linear(256, 512, kSamples));
  model.layers.push_back(Linear(512, 10, kSamples));
  return model;
}

Model Transformer() {
  constexpr double kSequences = 8;
  constexpr double kWords = 8 * 64;
  constexpr int64_t kWidth = 256;
  constexpr int64_t kVocabulary = 2000;
  Model model = {"transformer", 0.121, {}};
  model.layers.push_back({{kVocabulary * kWidth}, kWidth * kWords});
  for (int block = 0; block < 4; ++block) {
    model.layers.push_back(Linear(kWidth, 3 * kWidth, kWords));
    model.layers.push_back(Linear(kWidth, kWidth, kWords));
    model.layers.push_back(Norm(kWidth, kWords));
    model.layers.push_back(Linear(kWidth, 4 * kWidth, kWords));
    model.layers.push_back(Linear(4 * kWidth, kWidth, kWords));
    model.layers.push_back(Norm(kWidth, kWords));
  }
  model.layers.push_back(Linear(kWidth, kVocabulary, kSequences));
  return model;
}

}  // namespace horoscale::tuning
