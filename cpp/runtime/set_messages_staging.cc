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
// Read at once; and what holds up others for so long that they don't wait for it.
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

// Before its caller has the memory back.
void SetMessages::StopStaging(int peer, Outgoing& outgoing) {
  if (outgoing.use == 0) return;
  transport_.StagingWith(peer)->Stop(peer, std::exchange(outgoing.use, 0));
  outgoing.has_area = false;
  if (--served_[peer] == 0) served_.erase(peer);
}

// Where this rank has nothing to read itself: what it would stage its receiver reads meanwhile, in
// less time than both of them need for it.
bool SetMessages::StepStaging() {
  bool moved = false;
  for (const auto& [peer, count] : served_) moved |= transport_.StagingWith(peer)->Step(peer);
  return moved;
}

// ------------------------------------------------------------------ the receiver

// Those behind one of the same peer wait for its end, rather than be read alone; but none that is
// over at once waits for one that takes long.
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
  if (incoming.staged == nullptr) {
    ReadNext(peer);  // nothing may be staged whose end they could wait for
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

// What has waited for one that is staged.
void SetMessages::ReadNext(int peer) {
  std::deque<uint64_t>& unstaged = PeerAt(peer).unstaged;
  if (unstaged.empty()) return;
  reading_.emplace_front(peer, unstaged.front());
  unstaged.pop_front();
}

// Some pieces, of either sort; false if they can't be read.
bool SetMessages::ReadStaged(int peer, Incoming& incoming) {
  StagingReader& reader = incoming.staged->reader;
  const Message& message = *incoming.operation->message;
  for (uint64_t moved = 0; moved < kStepBytes && !reader.IsDone();) {
    if (const size_t taken = reader.TakeStaged(); taken > 0) {
      moved += taken;
      incoming.waits_since_ns = 0;
      // It has gone to sleep if its cells were full for long.
      if (reader.LeavesSome()) transport_.Ring(peer);
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
