#include "transport/shm/staging_areas.h"

#include <utility>

#include "platform/shared_memory.h"

namespace horoscale {
namespace {

// With more peers than this, further receivers read messages without the sender's help.
constexpr size_t kMaxAreas = 16;

}  // namespace

int64_t StagingAreas::OffsetFor(int peer) {
  if (const auto found = outgoing_.find(peer); found != outgoing_.end()) {
    return found->second.offset;
  }
  if (outgoing_.size() >= kMaxAreas) return -1;
  Outgoing& made = outgoing_[peer];
  if (const auto area = transport_.AllocateShared(kStagingAreaBytes); area.ok()) {
    made.area = *area;
    made.offset = transport_.SharedOffset(*area, kStagingAreaBytes);
  }
  return made.offset;
}

void StagingAreas::Serve(int peer, uint32_t use, std::span<const std::byte> message) {
  Outgoing& outgoing = outgoing_.at(peer);
  outgoing.writer.emplace(outgoing.area, use, message);
  outgoing.is_used = true;
}

void StagingAreas::Stop(int peer, uint32_t use) {
  std::optional<StagingWriter>& writer = outgoing_.at(peer).writer;
  if (writer && writer->use() == use) writer.reset();
}

bool StagingAreas::Step(int peer) {
  std::optional<StagingWriter>& writer = outgoing_.at(peer).writer;
  return writer && writer->Step();
}

void StagingAreas::GiveBackIdle(double now) {
  for (auto& [peer, outgoing] : outgoing_) {
    if (std::exchange(outgoing.is_used, false) || outgoing.writer) {
      outgoing.idle_since = now;
    } else if (outgoing.idle_since && now - *outgoing.idle_since >= kIdleSeconds) {
      // If the system refuses, the memory simply stays allocated.
      (void)DiscardPages(outgoing.area + kStagingCellsOffset, kStagingCellsBytes);
      outgoing.idle_since.reset();
    }
  }
}

std::unique_ptr<StagingAreas::Incoming> StagingAreas::Receive(int peer, int64_t offset,
                                                              std::span<std::byte> into) {
  Receiving& receiving = receiving_[peer];
  if (receiving.is_under_way) return nullptr;
  std::byte* const area = transport_.SharedAddress(peer, offset, kStagingAreaBytes);
  if (area == nullptr || offset % static_cast<int64_t>(alignof(StagingControl)) != 0) {
    return nullptr;
  }
  if (receiving.last_use == UINT32_MAX) receiving.last_use = 0;  // none has the number 0
  return std::make_unique<Incoming>(receiving, area, into);
}

}  // namespace horoscale
