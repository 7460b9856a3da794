#include "runtime/set_messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "platform/clock.h"
#include "platform/log.h"

namespace horoscale {
namespace {

using FrameType = MessageFrame::Type;

// What is read at once: other sets have their turn in between.
constexpr uint64_t kPieceBytes = 1 << 20;
// Under way of one message.
constexpr uint64_t kWindowBytes = 8 * kMaxDataFrameBytes;
// Of one peer, coming by frames at a time.
constexpr uint32_t kMaxComing = 4;
// To this rank itself, of one step.
constexpr size_t kMaxLoopback = 64;

std::string Describe(const Envelope& envelope) {
  return std::to_string(envelope.bytes / SizeOf(envelope.dtype)) + " elements of " +
         std::string(Name(envelope.dtype)) + " (" + std::to_string(envelope.bytes) + " bytes)";
}

Status Mismatch(const OperationPtr& operation, int receiver, int sender, const Envelope& wanted,
                const Envelope& sent) {
  std::vector<int> ranks = {std::min(sender, receiver), std::max(sender, receiver)};
  if (sender == receiver) ranks.pop_back();
  const std::string name = operation->DisplayName();
  return {StatusCode::kMismatch,
          name + " on process set " + std::to_string(operation->process_set_id) + ": rank " +
              std::to_string(sender) + " sends " + Describe(sent) + ", and rank " +
              std::to_string(receiver) + " receives " + Describe(wanted),
          {std::move(ranks), operation->process_set_id, name}};
}

}  // namespace

void SetMessages::Submit(OperationPtr operation) {
  pending_.emplace(operation->token, operation);
  submitted_.push_back(std::move(operation));
}

Result<bool> SetMessages::Step() {
  bool moved = !submitted_.empty();
  while (!submitted_.empty()) {
    const OperationPtr operation = std::move(submitted_.front());
    submitted_.pop_front();
    Begin(operation);
  }
  for (size_t i = 0; i < kMaxLoopback && !loopback_.empty(); ++i) {
    const std::vector<std::byte> frame = std::move(loopback_.front());
    loopback_.pop_front();
    HS_RETURN_IF_ERROR(OnFrame(transport_.rank(), frame));
    moved = true;
  }
  if (reading_.empty()) return moved;
  ReadPiece();
  return true;
}

void SetMessages::Begin(const OperationPtr& operation) {
  const Message& message = *operation->message;
  if (message.is_send) {
    Peer& peer = peers_[message.peer];
    if (peer.held.empty() && peer.offers < kMaxOffers) return Announce(operation);
    return peer.held.push_back(operation);
  }
  auto arrived =
      mailbox_.Post(operation->token, message.peer, message.envelope.channel, message.envelope.tag);
  if (arrived) Take(operation, std::move(*arrived));
}

void SetMessages::Announce(const OperationPtr& operation) {
  const Message& message = *operation->message;
  const uint64_t bytes = message.envelope.bytes;
  Peer& peer = peers_[message.peer];
  MessageFrame frame;
  frame.number = peer.next_number++;
  frame.envelope = message.envelope;
  if (peer.credit.Take(bytes)) {
    frame.type = FrameType::kEager;
    frame.payload = {message.memory, bytes};
    Send(message.peer, frame);
    return End(operation, Status::Ok());
  }
  frame.type = FrameType::kOffer;
  const int64_t offset = bytes > 0 ? transport_.SharedOffset(message.memory, bytes) : -1;
  if (offset >= 0) {
    frame.source = {MessageSource::Kind::kShared, static_cast<uint64_t>(offset)};
  } else {
    frame.source = {MessageSource::Kind::kPrivate,
                    static_cast<uint64_t>(reinterpret_cast<uintptr_t>(message.memory))};
  }
  ++peer.offers;
  outgoing_.emplace(Key(message.peer, frame.number), Outgoing{operation});
  Send(message.peer, frame);
}

void SetMessages::Take(const OperationPtr& operation, ArrivedMessage message) {
  const int peer = message.peer;
  if (message.is_eager) {
    ReceiveEager(operation, peer, message.number, message.envelope, message.payload);
    return GiveCredit(peer);
  }
  if (!Agrees(operation, peer, message.number, message.envelope)) return;
  const Key key(peer, message.number);
  operation->started_at = MonotonicSeconds();
  incoming_.emplace(key, Incoming{operation, message.source});
  reading_.push_back(key);
}

// Otherwise both are told, and nobody else.
bool SetMessages::Agrees(const OperationPtr& operation, int peer, uint64_t number,
                         const Envelope& envelope) {
  const Envelope& wanted = operation->message->envelope;
  if (wanted == envelope) return true;
  MessageFrame frame;
  frame.type = FrameType::kRefused;
  frame.number = number;
  frame.envelope = wanted;
  Send(peer, frame);
  End(operation, Mismatch(operation, transport_.rank(), peer, wanted, envelope));
  return false;
}

void SetMessages::ReceiveEager(const OperationPtr& operation, int peer, uint64_t number,
                               const Envelope& envelope, std::span<const std::byte> payload) {
  if (!Agrees(operation, peer, number, envelope)) return;
  if (!payload.empty()) std::memcpy(operation->message->memory, payload.data(), payload.size());
  operation->result = peer;
  End(operation, Status::Ok());
}

// Of the message whose turn it is.
void SetMessages::ReadPiece() {
  const Key key = reading_.front();
  reading_.pop_front();
  const auto& [peer, number] = key;
  const auto found = incoming_.find(key);
  Incoming& incoming = found->second;
  const Message& message = *incoming.operation->message;
  const uint64_t bytes = std::min(kPieceBytes, message.envelope.bytes - incoming.taken);
  if (!Read(peer, incoming, {message.memory + incoming.taken, bytes})) {
    incoming.taken = 0;
    incoming.by_frames = true;
    if (peers_[peer].coming < kMaxComing) return Clear(peer, number);
    return peers_[peer].uncleared.push_back(number);
  }
  incoming.taken += bytes;
  incoming.operation->started_at = MonotonicSeconds();
  if (incoming.taken < message.envelope.bytes) return reading_.push_back(key);
  // It counts when the sender says that it was not given up meanwhile.
  incoming.told = true;
  MessageFrame frame;
  frame.type = FrameType::kTaken;
  frame.number = number;
  frame.bytes = incoming.taken;
  Send(peer, frame);
}

bool SetMessages::Read(int peer, const Incoming& incoming, std::span<std::byte> into) {
  if (into.empty()) return true;
  const uint64_t place = incoming.source.place + incoming.taken;
  const std::byte* from = nullptr;
  if (incoming.source.kind == MessageSource::Kind::kShared) {
    from = transport_.SharedAddress(peer, static_cast<int64_t>(place), into.size());
    if (from == nullptr) return false;
  } else if (peer == transport_.rank()) {
    from = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(place));
  } else {
    return transport_.ReadMemory(peer, place, into);
  }
  std::memmove(into.data(), from, into.size());
  return true;
}

void SetMessages::Clear(int peer, uint64_t number) {
  ++peers_[peer].coming;
  MessageFrame frame;
  frame.type = FrameType::kClear;
  frame.number = number;
  Send(peer, frame);
}

void SetMessages::GiveCredit(int peer) {
  const uint64_t bytes = mailbox_.TakeCreditFor(peer);
  if (bytes == 0) return;
  MessageFrame frame;
  frame.type = FrameType::kCredit;
  frame.bytes = bytes;
  Send(peer, frame);
}

void SetMessages::Pump(int peer, uint64_t number, Outgoing& outgoing) {
  const Message& message = *outgoing.operation->message;
  MessageFrame frame;
  frame.type = FrameType::kData;
  frame.number = number;
  while (outgoing.sent < message.envelope.bytes && outgoing.sent - outgoing.taken < kWindowBytes) {
    const uint64_t bytes =
        std::min<uint64_t>(kMaxDataFrameBytes, message.envelope.bytes - outgoing.sent);
    frame.payload = {message.memory + outgoing.sent, bytes};
    Send(peer, frame);
    outgoing.sent += bytes;
  }
  outgoing.operation->started_at = MonotonicSeconds();
}

void SetMessages::OnAnswered(int rank) {
  Peer& peer = peers_[rank];
  --peer.offers;
  while (!peer.held.empty() && peer.offers < kMaxOffers) {
    const OperationPtr next = std::move(peer.held.front());
    peer.held.pop_front();
    Announce(next);
  }
}

void SetMessages::EndSend(std::map<Key, Outgoing>::iterator outgoing, const Status& status) {
  const OperationPtr operation = std::move(outgoing->second.operation);
  outgoing_.erase(outgoing);
  End(operation, status);
}

void SetMessages::EndReceive(std::map<Key, Incoming>::iterator incoming) {
  const OperationPtr operation = std::move(incoming->second.operation);
  operation->result = incoming->first.first;
  incoming_.erase(incoming);
  End(operation, Status::Ok());
}

// ------------------------------------------------------------------ frames

Status SetMessages::OnFrame(int from_rank, std::span<const std::byte> bytes) {
  const auto frame = DecodeMessageFrame(bytes);
  if (!frame.ok()) return frame.status();
  return TakeFrame(from_rank, *frame);
}

Status SetMessages::TakeFrame(int from_rank, const MessageFrame& frame) {
  switch (frame.type) {
    case FrameType::kEager:
    case FrameType::kOffer:
      return OnArrival(from_rank, frame);
    case FrameType::kClear:
    case FrameType::kTaken:
      return OnAnswer(from_rank, frame);
    case FrameType::kRefused:
      return OnRefused(from_rank, frame);
    case FrameType::kData:
    case FrameType::kConfirmed:
      return OnContent(from_rank, frame);
    case FrameType::kCredit:
      return peers_[from_rank].credit.Give(frame.bytes);
  }
  return Status::Ok();
}

Status SetMessages::OnArrival(int from_rank, const MessageFrame& frame) {
  const bool is_eager = frame.type == FrameType::kEager;
  const auto receive = mailbox_.Arrive(from_rank, frame.number, frame.envelope, is_eager);
  if (!receive.ok()) return receive.status();
  ArrivedMessage message{from_rank, frame.number, frame.envelope, is_eager, {}, frame.source};
  if (!*receive) {
    message.payload.assign(frame.payload.begin(), frame.payload.end());
    mailbox_.Keep(std::move(message));
    return Status::Ok();
  }
  const OperationPtr operation = pending_.at(**receive);
  if (!is_eager) {
    Take(operation, std::move(message));
    return Status::Ok();
  }
  ReceiveEager(operation, from_rank, frame.number, frame.envelope, frame.payload);
  GiveCredit(from_rank);
  return Status::Ok();
}

Status SetMessages::OnAnswer(int from_rank, const MessageFrame& frame) {
  const auto found = outgoing_.find({from_rank, frame.number});
  if (found == outgoing_.end())
    return Status::Protocol("an answer to a message that isn't offered");
  if (frame.type == FrameType::kTaken) return OnTaken(found, frame.bytes);
  Outgoing& outgoing = found->second;
  if (outgoing.by_frames) return Status::Protocol("it wants a message twice");
  outgoing.by_frames = true;
  Pump(from_rank, frame.number, outgoing);
  OnAnswered(from_rank);
  return Status::Ok();
}

Status SetMessages::OnTaken(std::map<Key, Outgoing>::iterator found, uint64_t bytes) {
  const auto [peer, number] = found->first;
  Outgoing& outgoing = found->second;
  const uint64_t all = outgoing.operation->message->envelope.bytes;
  const uint64_t most = outgoing.by_frames ? outgoing.sent : all;
  const uint64_t least = outgoing.by_frames ? outgoing.taken : all;
  if (bytes < least || bytes > most) return Status::Protocol("it took what it did not get");
  outgoing.taken = bytes;
  if (outgoing.by_frames) {
    if (bytes < all) {
      Pump(peer, number, outgoing);
    } else {
      EndSend(found, Status::Ok());
    }
    return Status::Ok();
  }
  MessageFrame frame;
  frame.type = FrameType::kConfirmed;
  frame.number = number;
  Send(peer, frame);
  EndSend(found, Status::Ok());
  OnAnswered(peer);
  return Status::Ok();
}

Status SetMessages::OnRefused(int from_rank, const MessageFrame& frame) {
  const auto found = outgoing_.find({from_rank, frame.number});
  if (found != outgoing_.end()) {
    if (found->second.by_frames) return Status::Protocol("it refuses what it has asked for");
    const OperationPtr& operation = found->second.operation;
    EndSend(found, Mismatch(operation, from_rank, transport_.rank(), frame.envelope,
                            operation->message->envelope));
    OnAnswered(from_rank);
    return Status::Ok();
  }
  if (frame.number == 0 || frame.number >= peers_[from_rank].next_number) {
    return Status::Protocol("it refuses a message that was not sent");
  }
  // A small one: its send is done.
  Log(LogLevel::kWarning, "a message to rank " + std::to_string(from_rank) + ", tag " +
                              std::to_string(frame.envelope.tag) + ", on process set " +
                              std::to_string(channel_.process_set) +
                              " could not be received there: rank " + std::to_string(from_rank) +
                              " receives " + Describe(frame.envelope));
  return Status::Ok();
}

Status SetMessages::OnContent(int from_rank, const MessageFrame& frame) {
  const auto found = incoming_.find({from_rank, frame.number});
  const bool is_data = frame.type == FrameType::kData;
  if (found == incoming_.end() || found->second.by_frames != is_data) {
    return Status::Protocol("the content of a message that was not asked for");
  }
  Incoming& incoming = found->second;
  const Message& message = *incoming.operation->message;
  const uint64_t left = message.envelope.bytes - incoming.taken;
  if (!is_data) {
    if (!incoming.told) return Status::Protocol("it confirms what was not read");
    EndReceive(found);
    return Status::Ok();
  }
  if (frame.payload.size() > left) return Status::Protocol("a message longer than it was said");
  std::memcpy(message.memory + incoming.taken, frame.payload.data(), frame.payload.size());
  incoming.taken += frame.payload.size();
  incoming.operation->started_at = MonotonicSeconds();
  MessageFrame taken;
  taken.type = FrameType::kTaken;
  taken.number = frame.number;
  taken.bytes = incoming.taken;
  Send(from_rank, taken);
  if (incoming.taken < message.envelope.bytes) return Status::Ok();
  EndReceive(found);
  Peer& peer = peers_[from_rank];
  --peer.coming;
  if (!peer.uncleared.empty()) {
    const uint64_t next = peer.uncleared.front();
    peer.uncleared.pop_front();
    Clear(from_rank, next);
  }
  return Status::Ok();
}

// ------------------------------------------------------------------ the end

void SetMessages::Fail(const Status& cause) {
  submitted_.clear();
  mailbox_.ForgetReceives();
  peers_.clear();
  outgoing_.clear();
  incoming_.clear();
  reading_.clear();
  loopback_.clear();
  while (!pending_.empty()) End(OperationPtr(pending_.begin()->second), cause);
}

void SetMessages::ReceiveWhatCame(const OperationPtr& operation, const Status& cause) {
  const Message& message = *operation->message;
  const Envelope& wanted = message.envelope;
  const auto arrived = mailbox_.TakeEager(message.peer, wanted.channel, wanted.tag);
  if (!arrived) return finish_(operation, cause);
  if (arrived->envelope != wanted) {
    return finish_(operation, Mismatch(operation, transport_.rank(), arrived->peer, wanted,
                                       arrived->envelope));
  }
  if (!arrived->payload.empty()) {
    std::memcpy(message.memory, arrived->payload.data(), arrived->payload.size());
  }
  operation->result = arrived->peer;
  finish_(operation, Status::Ok());
}

void SetMessages::Send(int peer, const MessageFrame& frame) {
  std::vector<std::byte> bytes = Encode(frame);
  if (peer == transport_.rank()) return loopback_.push_back(std::move(bytes));
  transport_.Send(peer, {FrameKind::kMessage, channel_}, bytes);
}

void SetMessages::End(const OperationPtr& operation, const Status& status) {
  pending_.erase(operation->token);
  finish_(operation, status);
}

}  // namespace horoscale
