// Which encodings hide the communication of a step? A pure function of what was measured.
//
// No tensor is compressed more than that takes, or above its error bound, or where it would not
// save much: where the network is fast, encoding costs about as much as it saves.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/encoding.h"
#include "base/types.h"

namespace horoscale {

// The encodings that are chosen from, by how much they compress.
inline constexpr std::array kEncodingLevels = {
    Encoding{},
    Encoding{EncodingKind::kBfloat16},
    Encoding{EncodingKind::kInt8},
    Encoding{EncodingKind::kInt4},
    Encoding{EncodingKind::kOneBit},
    Encoding{EncodingKind::kTopK, 41},  // a hundredth
};
inline constexpr size_t kNumEncodingLevels = kEncodingLevels.size();

// By level: the relative error of a tensor, the norm of its residual by that of its value. Not
// known: what is expected of the level.
struct LevelErrors {
  LevelErrors();
  // Level `level` was measured. What is expected of more compression follows from that.
  void Measure(size_t level, double error);

  std::array<double, kNumEncodingLevels> errors;

 private:
  double int8_error_ = 0;                   // 0: not measured
  double int4_per_int8_ = 1.1 * 127.0 / 7;  // by the sizes of their steps, until it is measured
};

// Bytes and seconds of a process set whose members are on several hosts.
struct NetworkState {
  double bytes_per_second = 0;   // 0: not known yet
  double latency_seconds = 0;    // of a bucket
  double coding_per_second = 0;  // bytes that are encoded and decoded in a second
};

struct AdaptiveTensor {
  int64_t elements = 0;
  DataType dtype = DataType::kFloat32;
  double most_error = 0;
  int priority = 0;  // the higher, the sooner it is needed
  LevelErrors errors;
};

// What a bucket with this tensor alone takes.
double TransferSeconds(const AdaptiveTensor& tensor, size_t level, const NetworkState& network);
// Its part in larger buckets, which share the latency.
double ShareSeconds(const AdaptiveTensor& tensor, size_t level, const NetworkState& network);

// A level for each tensor, such that all of them take no longer than `seconds`, which is for how
// long the rest of the step hides them; where that can't be, the shortest that their bounds allow.
// Tensors are compressed one level after the other, and at each level those first that are needed
// first: the computation has the least time to hide them.
std::vector<size_t> ChooseLevels(std::span<const AdaptiveTensor> tensors,
                                 const NetworkState& network, double seconds);

}  // namespace horoscale
