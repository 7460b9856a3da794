// SetMessages: large messages in private memory that both ranks copy at once
// (transport/memory/staging.h).
#include <utility>

#include "platform/clock.h"
#include "runtime/set_messages.h"
#include "transport/shm/staging_areas.h"

namespace horoscale {
namespace {

// Of a message in one step: other sets have their turn in between.
constexpr uint64_t kStepBytes = 256 << 10;
// A sender takes less for a piece, unless it has lost its core.
constexpr int64_t kPatienceNs = 20'000;

}  // namespace

// ------------------------------------------------------------------ the sender

MessageSource SetMessages::PrivateSource(int peer, const std::byte* memory, uint64_t bytes) const {
  MessageSource source;
  source.place = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(memory));
  const bool pays = bytes >= kLeastStagedBytes && bytes <= kMostStagedBytes;
  StagingAreas* const areas = pays ? transport_.StagingWith(peer) : nullptr;
  const int64_t offset = areas != nullptr ? areas->OffsetFor(peer) : -1;
  if (offset < 0) return source;
  source.kind = MessageSource::Kind::kStaged;
  source.area = static_cast<uint64_t>(offset);
  return source;
}

Status SetMessages::OnStage(OutgoingEntry found, uint32_t use) {
  const auto& [peer, number] = found->first;
  Outgoing& outgoing = found->second;
  if (!outgoing.has_area || outgoing.use != 0 || use == 0) {
    return Status::Protocol("it wants a message staged that was not offered so");
  }
  const Message& message = *outgoing.operation->message;
  outgoing.use = use;
  outgoing.operation->started_at = MonotonicSeconds();
  transport_.StagingWith(peer)->Serve(peer, use, {message.place(), message.envelope.bytes});
  ++served_[peer];
  return Status::Ok();
}

// Before its caller has the memory back.
void SetMessages::StopStaging(int peer, Outgoing& outgoing) {
  if (outgoing.use == 0) return;
  transport_.StagingWith(peer)->Stop(peer, std::exchange(outgoing.use, 0));
  outgoing.has_area = false;
  if (--served_[peer] == 0) served_.erase(peer);
}

bool SetMessages::StepStaging() {
  bool moved = false;
  for (const auto& [peer, count] : served_) moved |= transport_.StagingWith(peer)->Step(peer);
  return moved;
}

// ------------------------------------------------------------------ the receiver

// Whether the message comes so; else it is read by this rank alone.
bool SetMessages::BeginStaged(IncomingEntry entry) {
  const auto& [peer, number] = entry->first;
  Incoming& incoming = entry->second;
  if (incoming.source.kind != MessageSource::Kind::kStaged || incoming.taken > 0) return false;
  StagingAreas* const areas = transport_.StagingWith(peer);
  if (areas == nullptr) return false;
  const Message& message = *incoming.operation->message;
  incoming.staged = areas->Receive(peer, static_cast<int64_t>(incoming.source.area),
                                   {message.place(), message.envelope.bytes});
  if (incoming.staged == nullptr) return false;
  MessageFrame frame;
  frame.type = MessageFrame::Type::kStage;
  frame.number = number;
  frame.use = incoming.staged->reader.use();
  Send(peer, frame);
  return true;
}

// Some pieces, of either sort; false if they can't be read.
bool SetMessages::ReadStaged(int peer, Incoming& incoming) {
  StagingReader& reader = incoming.staged->reader;
  const Message& message = *incoming.operation->message;
  for (uint64_t moved = 0; moved < kStepBytes && !reader.IsDone();) {
    if (const size_t taken = reader.TakeStaged(); taken > 0) {
      moved += taken;
      incoming.waits_since_ns = 0;
      continue;
    }
    auto piece = reader.NextUnread(false);
    if (!piece) {
      // The sender is copying the last ones.
      const int64_t now = MonotonicNanoseconds();
      if (incoming.waits_since_ns == 0) incoming.waits_since_ns = now;
      if (now - incoming.waits_since_ns < kPatienceNs) return true;
      piece = reader.NextUnread(true);
    }
    const std::span into(message.place() + piece->offset, piece->bytes);
    if (!transport_.ReadMemory(peer, incoming.source.place + piece->offset, into)) return false;
    moved += piece->bytes;
  }
  return true;
}

}  // namespace horoscale
