// The models of benchmarks/training.py and benchmarks/overlap.py, as a communication library sees
// them: the tensors of each layer, and which part of the computation it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace horoscale::tuning {

struct Layer {
  std::vector<int64_t> elements;  // of its gradients, float32; in the order in which they are ready
  double work = 0;                // multiplications of its forward pass
};

struct Model {
  std::string name;
  double compute_seconds = 0;  // of a step, on one core (docs/benchmarks.md, docs/priorities.md)
  std::vector<Layer> layers;   // in the order of the forward pass

  int64_t Bytes() const;
};

// 70 MB of gradients.
Model Perceptron();
// 10 MB, most of them in the last layers; most of the work is in the first ones.
Model Convolutions();
// 17 MB in 51 tensors.
Model Transformer();

}  // namespace horoscale::tuning
