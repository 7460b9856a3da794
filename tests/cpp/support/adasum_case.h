// An Adasum of random vectors with its expected result, which is computed again in plain float64.
// Works with any Exchange, as collective_cases.h does.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/collective_cases.h"
#include "support/reference_fold.h"

namespace horoscale::testing {

using Vector = std::vector<double>;

inline double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Vector AdasumOfTwo(const Vector& a, const Vector& b) {
  const double of_a = Dot(a, a);
  const double of_b = Dot(b, b);
  const double weight_a = of_a == 0 ? 1 : 1 - Dot(a, b) / (2 * of_a);
  const double weight_b = of_b == 0 ? 1 : 1 - Dot(a, b) / (2 * of_b);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = weight_a * a[i] + weight_b * b[i];
  return sum;
}

// Each `group` consecutive vectors are averaged first.
inline Vector ReferenceAdasum(const std::vector<Vector>& vectors, size_t group) {
  std::vector<Vector> left;
  for (size_t first = 0; first < vectors.size(); first += group) {
    Vector mean(vectors[0].size());
    for (size_t i = 0; i < mean.size(); ++i) {
      for (size_t v = first; v < first + group; ++v) mean[i] += vectors[v][i];
      mean[i] /= static_cast<double>(group);
    }
    left.push_back(std::move(mean));
  }
  const size_t power = std::bit_floor(left.size());
  for (size_t i = power; i < left.size(); ++i)
    left[i - power] = AdasumOfTwo(left[i - power], left[i]);
  left.resize(power);
  while (left.size() > 1) {
    std::vector<Vector> next;
    for (size_t i = 0; i < left.size(); i += 2) next.push_back(AdasumOfTwo(left[i], left[i + 1]));
    left = std::move(next);
  }
  return left[0];
}

inline double LoadAsDouble(DataType dtype, const std::byte* from) {
  switch (dtype) {
    case DataType::kFloat16:
      return static_cast<double>(Float16::Load(from));
    case DataType::kBfloat16:
      return static_cast<double>(Bfloat16::Load(from));
    case DataType::kFloat32:
      return static_cast<double>(Plain<float>::Load(from));
    default:
      return Plain<double>::Load(from);
  }
}

inline void StoreDouble(DataType dtype, std::byte* to, double value) {
  switch (dtype) {
    case DataType::kFloat16:
      return Float16::Store(to, static_cast<float>(value));
    case DataType::kBfloat16:
      return Bfloat16::Store(to, static_cast<float>(value));
    case DataType::kFloat32:
      return Plain<float>::Store(to, static_cast<float>(value));
    default:
      return Plain<double>::Store(to, value);
  }
}

// Relative to the largest value.
inline double AdasumTolerance(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 2e-3;
    case DataType::kBfloat16:
      return 1.6e-2;
    case DataType::kFloat32:
      return 1e-6;
    default:
      return 1e-13;
  }
}

struct AdasumCaseOptions {
  uint32_t members = 2;
  uint32_t group = 1;
  DataType dtype = DataType::kFloat32;
  std::vector<int64_t> sizes = {100};  // of the tensors, in elements
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;
  std::vector<uint32_t> absent = {};
};

class AdasumCase : public CollectiveCase {
 public:
  AdasumCase(std::mt19937_64& random, AdasumCaseOptions options) : options_(std::move(options)) {
    const size_t element = SizeOf(options_.dtype);
    for (const int64_t size : options_.sizes) {
      Tensor tensor;
      std::normal_distribution<double> normal;
      Vector common(static_cast<size_t>(size));
      for (double& value : common) value = normal(random);
      std::vector<Vector> vectors;
      for (uint32_t m = 0; m < options_.members; ++m) {
        Bytes in(static_cast<size_t>(size) * element);
        Vector vector(common.size());
        for (size_t i = 0; i < common.size(); ++i) {
          StoreDouble(options_.dtype, &in[i * element], common[i] + normal(random));
          const double value = LoadAsDouble(options_.dtype, &in[i * element]);
          vector[i] = IsAbsent(m) ? 0 : value * options_.prescale;
        }
        vectors.push_back(std::move(vector));
        tensor.out.emplace_back(in.size());
        tensor.in.push_back(std::move(in));
      }
      tensor.untouched = tensor.in;
      tensor.expected = ReferenceAdasum(vectors, options_.group);
      for (double& value : tensor.expected) value *= options_.postscale;
      tensors_.push_back(std::move(tensor));
    }
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    AllreduceArgs args;
    args.reduction = {.dtype = options_.dtype,
                      .op = ReduceOp::kAdasum,
                      .prescale = options_.prescale,
                      .postscale = options_.postscale,
                      .group = options_.group};
    args.absent = options_.absent;
    for (Tensor& tensor : tensors_) {
      const auto bytes = static_cast<int64_t>(tensor.in[m].size());
      if (IsAbsent(m)) {
        args.segments.push_back({nullptr, nullptr, bytes});
      } else {
        std::byte* const out = options_.in_place ? tensor.in[m].data() : tensor.out[m].data();
        args.segments.push_back({tensor.in[m].data(), out, bytes});
      }
    }
    return MakeAllreduce(exchange, std::move(args));
  }

  const Bytes& Result(uint32_t member, size_t tensor) const {
    return options_.in_place ? tensors_[tensor].in[member] : tensors_[tensor].out[member];
  }
  const Bytes& Input(uint32_t member, size_t tensor) const {
    return tensors_[tensor].untouched[member];
  }

  std::string Check() const override {
    std::string wrong;
    for (size_t t = 0; t < tensors_.size(); ++t) wrong += CheckTensor(t);
    return wrong;
  }

  std::string Describe() const override {
    std::string text = "Adasum of " + std::string(Name(options_.dtype)) + " members " +
                       std::to_string(options_.members) + " group " +
                       std::to_string(options_.group) + (options_.in_place ? " in place" : "");
    for (const int64_t size : options_.sizes) text += " size " + std::to_string(size);
    for (const uint32_t member : options_.absent) text += " absent " + std::to_string(member);
    return text;
  }

 private:
  struct Tensor {
    std::vector<Bytes> in;
    std::vector<Bytes> untouched;
    std::vector<Bytes> out;
    Vector expected;
  };

  bool IsAbsent(uint32_t member) const {
    return std::find(options_.absent.begin(), options_.absent.end(), member) !=
           options_.absent.end();
  }

  std::string CheckTensor(size_t t) const {
    const Tensor& tensor = tensors_[t];
    double largest = 0;
    for (const double value : tensor.expected) largest = std::max(largest, std::fabs(value));
    const Bytes* first = nullptr;
    for (uint32_t m = 0; m < options_.members; ++m) {
      if (IsAbsent(m)) continue;
      const std::string who =
          "tensor " + std::to_string(t) + " of member " + std::to_string(m) + ": ";
      const Bytes& result = Result(m, t);
      if (!options_.in_place && tensor.in[m] != tensor.untouched[m]) return who + "input changed\n";
      if (first != nullptr && result != *first) return who + "other bits\n";
      first = &result;
      for (size_t i = 0; i < tensor.expected.size(); ++i) {
        const double got = LoadAsDouble(options_.dtype, &result[i * SizeOf(options_.dtype)]);
        if (std::fabs(got - tensor.expected[i]) <= AdasumTolerance(options_.dtype) * largest)
          continue;
        return who + std::to_string(got) + " at " + std::to_string(i) + ", expected " +
               std::to_string(tensor.expected[i]) + "\n";
      }
    }
    return {};
  }

  const AdasumCaseOptions options_;
  std::vector<Tensor> tensors_;
};

}  // namespace horoscale::testing
