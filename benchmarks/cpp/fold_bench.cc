// The speed of Fold by kernel family, compared with memcpy: gigabytes of result per second, in the
// L2 cache and in memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "collectives/fold_kernels.h"

namespace horoscale {
namespace {

template <typename Work>
double GigabytesPerSecond(size_t bytes, Work work) {
  const int repeats = static_cast<int>(std::max<size_t>((32 << 20) / bytes, 1));
  double best = 1e9;
  for (int round = 0; round < 7; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count() / repeats);
  }
  return static_cast<double>(bytes) / best * 1e-9;
}

struct Case {
  DataType dtype;
  ReduceOp op;
  size_t sources;
  double postscale;
};

void Run(const Case& c, size_t bytes) {
  std::vector<std::vector<float>> memory(c.sources + 1, std::vector<float>(bytes / 4, 1.5f));
  std::vector<const std::byte*> sources;
  for (size_t s = 0; s < c.sources; ++s) {
    sources.push_back(reinterpret_cast<const std::byte*>(memory[s].data()));
  }
  auto* out = reinterpret_cast<std::byte*>(memory.back().data());
  const Reduction reduction = {c.dtype, c.op, 1.0, c.postscale, static_cast<int64_t>(c.sources)};
  const auto count = static_cast<int64_t>(bytes / SizeOf(c.dtype));

  std::printf("%10zu %-9s %-8s %zu sources%s  memcpy %5.1f", bytes, Name(c.dtype).data(),
              Name(c.op).data(), c.sources, c.postscale != 1.0 ? " scaled" : "       ",
              GigabytesPerSecond(bytes, [&] { std::memcpy(out, sources[0], bytes); }));
  for (const FoldKernels* kernels : AvailableFoldKernels()) {
    const double speed =
        GigabytesPerSecond(bytes, [&] { FoldWith(*kernels, reduction, out, sources, count); });
    std::printf("  %s %5.1f", kernels->name.data(), speed);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace horoscale

int main() {
  using horoscale::DataType;
  using horoscale::ReduceOp;
  for (const size_t bytes : {size_t{128} << 10, size_t{64} << 20}) {
    for (const horoscale::Case& c :
         {horoscale::Case{DataType::kFloat32, ReduceOp::kSum, 2, 1.0},
          horoscale::Case{DataType::kFloat32, ReduceOp::kAverage, 2, 1.0},
          horoscale::Case{DataType::kFloat32, ReduceOp::kAverage, 3, 1.0},
          horoscale::Case{DataType::kFloat32, ReduceOp::kSum, 2, 0.3},
          horoscale::Case{DataType::kFloat32, ReduceOp::kMax, 2, 1.0},
          horoscale::Case{DataType::kFloat64, ReduceOp::kSum, 2, 1.0},
          horoscale::Case{DataType::kFloat16, ReduceOp::kAverage, 2, 1.0},
          horoscale::Case{DataType::kBfloat16, ReduceOp::kAverage, 2, 1.0},
          horoscale::Case{DataType::kBfloat16, ReduceOp::kSum, 4, 1.0},
          horoscale::Case{DataType::kInt32, ReduceOp::kAverage, 2, 1.0},
          horoscale::Case{DataType::kComplex64, ReduceOp::kProduct, 2, 1.0}}) {
      horoscale::Run(c, bytes);
    }
  }
  return 0;
}
