// SetCounters: the counters of a process set on this rank, for the metrics.
#pragma once

#include <array>
#include <cstdint>

#include "base/encoding.h"
#include "collectives/collective.h"
#include "runtime/adapted_tensors.h"

namespace horoscale {

struct SetCounters {
  uint64_t operations = 0;
  uint64_t bytes = 0;  // of the inputs
  uint64_t buckets = 0;
  uint64_t mpi_buckets = 0;     // buckets that were run by MPI's own collectives
  uint64_t device_buckets = 0;  // buckets of CUDA tensors
  uint64_t nccl_buckets = 0;    // buckets of CUDA tensors that were run by NCCL
  uint64_t fused_tensors = 0;   // tensors that shared their bucket with others
  uint64_t cache_hits = 0;
  uint64_t cache_misses = 0;
  uint64_t posts = 0;  // one-hop operations
  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  uint64_t messages_viewed = 0;  // received messages that were accessed in their sender's memory
  uint64_t nccl_messages = 0;    // sent and received messages of CUDA tensors over NCCL
  uint64_t message_bytes_sent = 0;
  uint64_t message_bytes_received = 0;
  std::array<EncodingTotals, kNumEncodingKinds> encoded;  // by lossy encodings
  AdaptedTensors adapted;
  double negotiate_seconds = 0;  // enqueue → planned: waiting for peers
  double execute_seconds = 0;    // of buckets
};

}  // namespace horoscale
