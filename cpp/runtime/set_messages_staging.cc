// SetMessages: large messages in private memory that both ranks copy concurrently
// (transport/memory/staging.h).
#include <utility>

#include "platform/clock.h"
#include "runtime/set_messages.h"
#include "transport/shm/staging_areas.h"

namespace horoscale {
namespace {

// Bytes of a message per step, so that other sets get their turn.
constexpr uint64_t kStepBytes = 256 << 10;
// A sender needs less time for a piece, unless it has lost its core.
constexpr int64_t kPatienceNs = 20'000;
// Shorter messages are read in one step; others do not wait for the end of longer ones.
constexpr uint64_t kBriefBytes = 1 << 20;
constexpr uint64_t kLongBytes = 4 << 20;

}  // namespace

// ------------------------------------------------------------------ the sender

MessageSource SetMessages::PrivateSource(int peer, const std::byte* memory, uint64_t bytes) const {
  MessageSource source;
  source.place = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(memory));
  StagingAreas* const areas = bytes >= kLeastStagedBytes ? transport_.StagingWith(peer) : nullptr;
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
    return Status::Protocol("it requested a staged message that was not offered as such");
  }
  const Message& message = *outgoing.operation->message;
  outgoing.use = use;
  outgoing.operation->started_at = MonotonicSeconds();
  transport_.StagingWith(peer)->Serve(peer, use, {message.place(), message.envelope.bytes});
  ++served_[peer];
  return Status::Ok();
}

// Called before its memory returns to the caller.
void SetMessages::StopStaging(int peer, Outgoing& outgoing) {
  if (outgoing.use == 0) return;
  transport_.StagingWith(peer)->Stop(peer, std::exchange(outgoing.use, 0));
  outgoing.has_area = false;
  if (--served_[peer] == 0) served_.erase(peer);
}

// Only if this rank has nothing to read itself; otherwise its receiver reads the data in less time
// than both would need for staging.
bool SetMessages::StepStaging() {
  bool moved = false;
  for (const auto& [peer, count] : served_) moved |= transport_.StagingWith(peer)->Step(peer);
  return moved;
}

// ------------------------------------------------------------------ the receiver

// Messages after a staged one of the same peer wait for its end instead of being read without help;
// but short messages do not wait for long ones.
bool SetMessages::WaitsForStaged(IncomingEntry entry) {
  const auto& [peer, number] = entry->first;
  const Incoming& incoming = entry->second;
  if (incoming.source.kind != MessageSource::Kind::kStaged || incoming.taken > 0) return false;
  Peer& from = PeerAt(peer);
  if (from.staged == nullptr || from.staged == &incoming) return false;
  if (incoming.bytes <= kBriefBytes && from.staged->bytes > kLongBytes) return false;
  from.unstaged.push_back(number);
  return true;
}

// Returns whether the message is staged; otherwise this rank reads it alone.
bool SetMessages::BeginStaged(IncomingEntry entry) {
  const auto& [peer, number] = entry->first;
  Incoming& incoming = entry->second;
  if (incoming.source.kind != MessageSource::Kind::kStaged || incoming.taken > 0) return false;
  StagingAreas* const areas = transport_.StagingWith(peer);
  if (areas == nullptr) return false;
  const Message& message = *incoming.operation->message;
  incoming.staged = areas->Receive(peer, static_cast<int64_t>(incoming.source.area),
                                   {message.place(), message.envelope.bytes});
  if (incoming.staged == nullptr) {
    ReadNext(peer);  // then no message may stay behind a staged one
    return false;
  }
  MessageFrame frame;
  frame.type = MessageFrame::Type::kStage;
  frame.number = number;
  frame.use = incoming.staged->reader.use();
  Send(peer, frame);
  PeerAt(peer).staged = &incoming;
  return true;
}

void SetMessages::EndStaged(IncomingEntry entry) {
  const int peer = entry->first.first;
  entry->second.staged.reset();
  PeerAt(peer).staged = nullptr;
  ReadNext(peer);
}

// Continues the messages that have waited for a staged one.
void SetMessages::ReadNext(int peer) {
  std::deque<uint64_t>& unstaged = PeerAt(peer).unstaged;
  if (unstaged.empty()) return;
  reading_.emplace_front(peer, unstaged.front());
  unstaged.pop_front();
}

// Copies some staged or unstaged pieces; returns false if they can't be read.
bool SetMessages::ReadStaged(int peer, Incoming& incoming) {
  StagingReader& reader = incoming.staged->reader;
  const Message& message = *incoming.operation->message;
  for (uint64_t moved = 0; moved < kStepBytes && !reader.IsDone();) {
    if (const size_t taken = reader.TakeStaged(); taken > 0) {
      moved += taken;
      incoming.waits_since_ns = 0;
      // The sender sleeps if its cells have been full for a long time.
      if (reader.LeavesSome()) transport_.Ring(peer);
      continue;
    }
    auto piece = reader.NextUnread(false);
    if (!piece) {
      // The sender is copying the last pieces.
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
