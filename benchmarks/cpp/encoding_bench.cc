// The speed at which one core encodes and decodes, compared with memcpy: GB of float32 per second.
//
// Both with residuals, as in training, over a tensor that exceeds all caches; the best of several
// runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "collectives/encoding.h"
#include "collectives/encoding_kernels.h"

namespace horoscale {
namespace {

constexpr int64_t kElements = 16 << 20;
constexpr int kRuns = 7;
using Clock = std::chrono::steady_clock;

double BestGigabytesPerSecond(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return static_cast<double>(kElements) * sizeof(float) / best / 1e9;
}

void Print(const char* what, double rate, double of_memcpy) {
  std::printf("%-24s %6.2f GB/s  %5.2f of memcpy\n", what, rate, rate / of_memcpy);
}

void Run() {
  std::vector<float> values(kElements);
  std::vector<float> residuals(kElements);
  std::vector<float> decoded(kElements);
  std::vector<std::byte> bytes(kElements * sizeof(float));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  const double memcpy_rate = BestGigabytesPerSecond(
      [&] { std::memcpy(decoded.data(), values.data(), values.size() * sizeof(float)); });
  std::printf("kernels: %s\n", AvailableEncodingKernels().front()->name.data());
  Print("memcpy", memcpy_rate, memcpy_rate);
  for (const Encoding encoding :
       {Encoding{EncodingKind::kInt8}, Encoding{EncodingKind::kInt4},
        Encoding{EncodingKind::kOneBit}, Encoding{EncodingKind::kTopK, 41}}) {
    const int64_t group_bytes = EncodedBytes(encoding, kGroupElements);
    const auto each = [&](auto visit) {
      for (int64_t g = 0; g < kElements / kGroupElements; ++g) {
        visit(g * kGroupElements, bytes.data() + g * group_bytes);
      }
    };
    const auto encode = [&](float* kept) {
      each([&](int64_t first, std::byte* to) {
        Encode(encoding, to, values.data() + first, kept == nullptr ? nullptr : kept + first,
               kGroupElements);
      });
    };
    const auto decode = [&] {
      each([&](int64_t first, const std::byte* from) {
        Decode(encoding, decoded.data() + first, from, kGroupElements);
      });
    };
    const std::string name(Name(encoding.kind));
    Print((name + " encode").c_str(), BestGigabytesPerSecond([&] { encode(nullptr); }),
          memcpy_rate);
    Print((name + " encode, residuals").c_str(),
          BestGigabytesPerSecond([&] { encode(residuals.data()); }), memcpy_rate);
    Print((name + " decode").c_str(), BestGigabytesPerSecond(decode), memcpy_rate);
    Print((name + " both").c_str(), BestGigabytesPerSecond([&] {
            encode(nullptr);
            decode();
          }),
          memcpy_rate);
  }
}

}  // namespace
}  // namespace horoscale

int main() {
  horoscale::Run();
  return 0;
}
