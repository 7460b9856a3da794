#include "transport/inproc/inproc_fabric.h"

#include <errno.h>

#include <utility>

#include "transport/inproc/inproc_transport.h"

namespace horoscale {

InprocFabric::InprocFabric(int size, const MemoryOptions& options, std::vector<uint32_t> hosts)
    : options_(options), hosts_(std::move(hosts)), ranks_(static_cast<size_t>(size)) {}

InprocFabric::~InprocFabric() = default;

Result<std::shared_ptr<InprocFabric>> InprocFabric::Create(int size, const MemoryOptions& options,
                                                           std::vector<uint32_t> hosts) {
  HS_RETURN_IF_ERROR(CheckOptions(options));
  std::shared_ptr<InprocFabric> fabric(new InprocFabric(size, options, std::move(hosts)));
  for (auto& rank : fabric->ranks_) {
    Result<EventFd> doorbell = EventFd::Create();
    if (!doorbell.ok()) return doorbell.status();
    Result<EventFd> wake = EventFd::Create();
    if (!wake.ok()) return wake.status();
    rank = std::make_unique<Rank>(doorbell.TakeValue(), wake.TakeValue());
  }
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      if (from == to) continue;
      AlignedMemory ring = AllocateAligned(RingMemoryBytes(options.ring_bytes));
      if (ring == nullptr) return Status::System("allocating a control ring", ENOMEM);
      fabric->rings_[{from, to}] = std::move(ring);
    }
  }
  return fabric;
}

std::unique_ptr<Transport> InprocFabric::Endpoint(int rank) {
  return std::make_unique<InprocTransport>(shared_from_this(), rank);
}

void InprocFabric::End(int rank, std::string_view how) {
  {
    std::lock_guard lock(mutex_);
    Rank& ended = *ranks_[static_cast<size_t>(rank)];
    if (ended.ended) return;
    ended.ended = true;
    ended.how = how;
  }
  ended_count_.fetch_add(1);
  for (int other = 0; other < static_cast<int>(ranks_.size()); ++other) {
    if (other != rank) ranks_[static_cast<size_t>(other)]->wake.Signal();
  }
}

}  // namespace horoscale
