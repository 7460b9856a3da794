// The transports of a whole job for conformance tests: all ranks in this process, driven by the
// test.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/memory/memory_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/transport.h"

// Ranks of one process map shared memory at several addresses, which the thread sanitizer can't
// follow.
#if defined(__SANITIZE_THREAD__)
#define HOROSCALE_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOROSCALE_TSAN
#endif
#endif

namespace horoscale {

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  virtual Transport& At(int rank) = 0;
  // Simulates a crash of the rank for its peers.
  virtual void Lose(int rank) = 0;
};

struct TransportKind {
  std::string name;
  // Whether ranks 0 and 1 share memory and ring each other's doorbells.
  bool has_common_memory;
  std::function<std::unique_ptr<TransportWorld>(int size, const MemoryOptions& options)> make;
};
std::vector<TransportKind> AllTransportKinds();
// The worlds whose ranks all share memory.
std::vector<TransportKind> MemoryTransportKinds();

// For a small job on this host.
ShmConfig TestShmConfig(int rank, int size, const MemoryOptions& options);

// Records all events of a rank.
class Inbox : public TransportSink {
 public:
  struct Received {
    FrameHeader header;
    std::vector<std::byte> payload;
  };

  void OnFrame(int from_rank, const FrameHeader& header,
               std::span<const std::byte> payload) override {
    frames[from_rank].push_back({header, {payload.begin(), payload.end()}});
  }
  void OnRankLost(int rank, const Status& reason) override {
    frames_when_lost[rank] = frames[rank].size();
    lost.emplace_back(rank, reason);
  }

  std::map<int, std::vector<Received>> frames;  // by sender
  std::map<int, size_t> frames_when_lost;       // of that sender, when it was lost
  std::vector<std::pair<int, Status>> lost;
};

}  // namespace horoscale
