// InprocFabric: all ranks of a job in one process, on the heap. The reference transport: ranks may
// be threads (for ThreadSanitizer), or one thread may drive all of them in any order, so that tests
// are deterministic and never sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/aligned_memory.h"
#include "base/status.h"
#include "platform/event_fd.h"
#include "transport/memory/memory_transport.h"

namespace horoscale {

class InprocFabric : public std::enable_shared_from_this<InprocFabric> {
 public:
  // `hosts[r]` is the simulated host of rank r, any number; empty: all ranks are on one host.
  // Memory is accessible to all ranks anyway.
  static Result<std::shared_ptr<InprocFabric>> Create(int size, const MemoryOptions& options = {},
                                                      std::vector<uint32_t> hosts = {});
  ~InprocFabric();

  // Creates the transport of a rank, once per rank. It keeps the fabric alive.
  std::unique_ptr<Transport> Endpoint(int rank);

  // Simulates the death of the rank's process for its peers; the rank itself is not notified. Any
  // thread.
  void Kill(int rank) { End(rank, "its process ended"); }

 private:
  friend class InprocTransport;
  struct Rank;

  InprocFabric(int size, const MemoryOptions& options, std::vector<uint32_t> hosts);

  std::byte* Ring(int from, int to) const { return rings_.at({from, to}).get(); }
  void End(int rank, std::string_view how);

  const MemoryOptions options_;
  const std::vector<uint32_t> hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<int, int>, AlignedMemory> rings_;  // by producer, consumer
  std::atomic<uint32_t> ended_count_{0};

  struct Block {
    AlignedMemory memory;
    size_t bytes;
    int owner;
  };
  std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;  // by address; all of AllocateShared()
};

}  // namespace horoscale
