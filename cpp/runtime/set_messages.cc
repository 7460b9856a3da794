#include "runtime/set_messages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "platform/clock.h"
#include "runtime/message_memory.h"
#include "runtime/message_mismatch.h"

namespace horoscale {
namespace {

using FrameType = MessageFrame::Type;

// Maximum size of one read, so that other sets get their turn.
constexpr uint64_t kPieceBytes = 1 << 20;
// Maximum number of messages of one peer that arrive in frames concurrently.
constexpr uint32_t kMaxComing = 4;
// Maximum number of frames to this rank itself per step.
constexpr size_t kMaxLoopback = 64;
// Limit after a failure; a copy ends when the caller's stream has reached it.
constexpr double kCopySeconds = 10;

}  // namespace

void SetMessages::Submit(OperationPtr operation) {
  pending_.emplace(operation->token, operation);
  submitted_.push_back(std::move(operation));
}

Result<bool> SetMessages::Step() {
  bool moved = !submitted_.empty();
  BeginSubmitted();
  for (size_t i = 0; i < kMaxLoopback && !loopback_.empty(); ++i) {
    const std::vector<std::byte> frame = std::move(loopback_.front());
    loopback_.pop_front();
    HS_RETURN_IF_ERROR(OnFrame(transport_.rank(), frame));
    moved = true;
  }
  const auto launched = launches_.Step();
  if (!launched.ok()) return launched;
  const auto ended = StepDevice();
  if (!ended.ok()) return ended;
  moved |= *launched || *ended;
  if (reading_.empty()) return StepStaging() || moved;
  ReadPiece();
  return true;
}

SetMessages::Peer& SetMessages::PeerAt(int rank) {
  const auto found = peers_.find(rank);
  if (found != peers_.end()) return found->second;
  const std::array<int, 2> both = {std::min(rank, transport_.rank()),
                                   std::max(rank, transport_.rank())};
  const bool is_near = rank == transport_.rank() || transport_.HostsOf(both).empty();
  return peers_.emplace(rank, is_near ? kEagerInHost : kEagerBetweenHosts).first->second;
}

void SetMessages::BeginSubmitted() {
  while (!submitted_.empty()) {
    const OperationPtr operation = std::move(submitted_.front());
    submitted_.pop_front();
    Begin(operation);
  }
}

void SetMessages::Begin(const OperationPtr& operation) {
  const Message& message = *operation->message;
  if (message.released) return Release(operation);
  if (const Status* const cause = WhyNot(*operation)) {
    pending_.erase(operation->token);
    return ReceiveWhatCame(operation, *cause);
  }
  if (message.is_send) return BeginSend(operation);
  auto arrived =
      mailbox_.Post(operation->token, message.peer, message.envelope.channel, message.envelope.tag);
  if (arrived) Take(operation, std::move(*arrived));
}

void SetMessages::AnnounceOrHold(const OperationPtr& operation) {
  Peer& peer = PeerAt(operation->message->peer);
  if (peer.held.empty() && peer.offers < kMaxOffers) return Announce(operation);
  peer.held.push_back(operation);
}

void SetMessages::Announce(const OperationPtr& operation) {
  const Message& message = *operation->message;
  const uint64_t bytes = message.envelope.bytes;
  Peer& peer = PeerAt(message.peer);
  MessageFrame frame;
  frame.number = peer.next_number++;
  frame.envelope = message.envelope;
  // NCCL transfers it: the host has no copy that could be sent eagerly.
  const bool is_at_device = IsOnDevice(*operation) && !message.copy;
  if (!is_at_device && peer.credit.Take(bytes)) {
    frame.type = FrameType::kEager;
    frame.payload = {message.place(), bytes};
    Send(message.peer, frame);
    return End(operation, Status::Ok());
  }
  frame.type = FrameType::kOffer;
  const int64_t offset = bytes > 0 ? transport_.SharedOffset(message.place(), bytes) : -1;
  if (is_at_device) {
    frame.source.kind = MessageSource::Kind::kDevice;
  } else if (offset >= 0) {
    frame.source = {MessageSource::Kind::kShared, static_cast<uint64_t>(offset)};
  } else {
    frame.source = PrivateSource(message.peer, message.place(), bytes);
  }
  ++peer.offers;
  const bool has_area = frame.source.kind == MessageSource::Kind::kStaged;
  outgoing_.emplace(Key(message.peer, frame.number), Outgoing{operation, has_area});
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
  const auto incoming =
      incoming_.emplace(key, Incoming{operation, message.source, message.envelope.bytes}).first;
  if (message.source.kind == MessageSource::Kind::kDevice && launches_.CanCarry(*operation, peer)) {
    return Propose(incoming);
  }
  if (operation->message->is_view && See(incoming)) return;
  if (Status room = MakeRoom(*operation); !room.ok()) {
    incoming->second.operation = nullptr;
    TellTaken(incoming);  // or its sender would wait
    return End(operation, room);
  }
  reading_.push_back(key);
}

// Accesses the message of a view in its sender's memory, until it is released. Returns false if it
// is not accessible.
bool SetMessages::See(IncomingEntry incoming) {
  const auto& [peer, number] = incoming->first;
  Message& message = *incoming->second.operation->message;
  const std::byte* const place = AddressOf(peer, incoming->second.source, message.envelope.bytes);
  if (place == nullptr) return false;
  const OperationPtr operation = std::exchange(incoming->second.operation, nullptr);
  incoming->second.view = operation.get();
  message.memory = const_cast<std::byte*>(place);
  message.number = number;
  operation->result = peer;
  if (message.is_unwanted) TellTaken(incoming);
  End(operation, Status::Ok());
  return true;
}

// Ends when the sender has confirmed that the message was valid until then. The view may belong to
// an earlier set with the same ID.
void SetMessages::Release(const OperationPtr& operation) {
  const OperationPtr view = operation->message->released;
  Message& seen = *view->message;
  if (!view->done.load()) seen.is_unwanted = true;
  const auto found = incoming_.find({static_cast<int>(view->result), seen.number});
  if (found == incoming_.end() || found->second.view != view.get() || found->second.told) {
    return End(operation, Status::Ok());
  }
  operation->started_at = MonotonicSeconds();
  operation->message->peer = found->first.first;  // also if the view was received from any rank
  found->second.operation = operation;
  TellTaken(found);
}

// The sender then confirms whether the data is valid: it may have abandoned the message meanwhile.
void SetMessages::TellTaken(IncomingEntry incoming) {
  incoming->second.told = true;
  MessageFrame frame;
  frame.type = FrameType::kTaken;
  frame.number = incoming->first.second;
  frame.bytes = incoming->second.bytes;
  Send(incoming->first.first, frame);
}

// Otherwise only the two ranks fail.
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
  if (Status room = MakeRoom(*operation); !room.ok()) return End(operation, room);
  if (!payload.empty()) std::memcpy(operation->message->place(), payload.data(), payload.size());
  operation->result = peer;
  Deliver(operation);
}

// Reads a piece of the message whose turn it is.
void SetMessages::ReadPiece() {
  const Key key = reading_.front();
  const int peer = key.first;
  const auto found = incoming_.find(key);
  Incoming& incoming = found->second;
  const Message& message = *incoming.operation->message;
  reading_.pop_front();
  if (WaitsForStaged(found)) return;
  incoming.operation->started_at = MonotonicSeconds();
  if (incoming.staged != nullptr || BeginStaged(found)) {
    const bool is_read = ReadStaged(peer, incoming);
    if (is_read && !incoming.staged->reader.IsDone()) return reading_.push_back(key);
    EndStaged(found);
    return is_read ? TellTaken(found) : AskForFrames(found);
  }
  const uint64_t bytes = std::min(kPieceBytes, message.envelope.bytes - incoming.taken);
  if (!Read(peer, incoming, {message.place() + incoming.taken, bytes})) return AskForFrames(found);
  incoming.taken += bytes;
  if (incoming.taken < message.envelope.bytes) return reading_.push_back(key);
  TellTaken(found);
}

void SetMessages::AskForFrames(IncomingEntry incoming) {
  const auto& [peer, number] = incoming->first;
  incoming->second.taken = 0;
  incoming->second.by_frames = true;
  if (PeerAt(peer).coming < kMaxComing) return Clear(peer, number);
  PeerAt(peer).uncleared.push_back(number);
}

bool SetMessages::Read(int peer, const Incoming& incoming, std::span<std::byte> into) {
  if (into.empty()) return true;
  MessageSource source = incoming.source;
  source.place += incoming.taken;
  if (const std::byte* const from = AddressOf(peer, source, into.size())) {
    std::memmove(into.data(), from, into.size());
    return true;
  }
  return (source.kind == MessageSource::Kind::kPrivate ||
          source.kind == MessageSource::Kind::kStaged) &&
         transport_.ReadMemory(peer, source.place, into);
}

// The address of a part of a message in this process; null if it is not accessible.
const std::byte* SetMessages::AddressOf(int peer, const MessageSource& source,
                                        uint64_t bytes) const {
  if (source.kind == MessageSource::Kind::kShared) {
    return transport_.SharedAddress(peer, static_cast<int64_t>(source.place), bytes);
  }
  if (peer != transport_.rank()) return nullptr;
  return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(source.place));
}

void SetMessages::Clear(int peer, uint64_t number) {
  ++PeerAt(peer).coming;
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

void SetMessages::OnAnswered(int rank) {
  Peer& peer = PeerAt(rank);
  --peer.offers;
  while (!peer.held.empty() && peer.offers < kMaxOffers) {
    const OperationPtr next = std::move(peer.held.front());
    peer.held.pop_front();
    Announce(next);
  }
}

void SetMessages::EndSend(OutgoingEntry outgoing, const Status& status) {
  StopStaging(outgoing->first.first, outgoing->second);
  const OperationPtr operation = std::move(outgoing->second.operation);
  outgoing_.erase(outgoing);
  End(operation, status);
}

void SetMessages::EndReceive(IncomingEntry incoming) {
  const OperationPtr operation = std::move(incoming->second.operation);
  const int peer = incoming->first.first;
  incoming_.erase(incoming);
  if (operation == nullptr) return;  // nobody waits for it
  operation->result = peer;
  Deliver(operation);
}

// ------------------------------------------------------------------ the end

// Why a send or receive is impossible after members have left; null if it is possible.
const Status* SetMessages::WhyNot(const Operation& operation) {
  if (left_.empty()) return nullptr;
  const Message& message = *operation.message;
  if (const auto peer = left_.find(message.peer); peer != left_.end()) return &peer->second;
  // The remaining members have no launch order.
  if (IsOnDevice(operation)) return &left_.at(last_left_);
  return message.peer == kAnyPeer ? WhyNotOfAny(message.envelope) : nullptr;
}

// The member that left may have been the expected sender.
const Status* SetMessages::WhyNotOfAny(const Envelope& envelope) {
  if (mailbox_.HasKeptOfAny(envelope.channel, envelope.tag)) return nullptr;
  const bool is_told = !told_.emplace(envelope.channel, envelope.tag).second;
  const bool is_alone = left_.size() + 1 >= place_.ranks.size();
  return is_told && !is_alone ? nullptr : &left_.at(last_left_);
}

bool SetMessages::HasDeviceTensors() const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [](const auto& entry) { return IsOnDevice(*entry.second); });
}

void SetMessages::Leave(int peer, const Status& cause) {
  BeginSubmitted();
  if (!left_.emplace(peer, cause).second) return;
  last_left_ = peer;
  told_.clear();
  std::vector<OperationPtr> ended;
  for (const Mailbox::Id token : mailbox_.ForgetPeer(peer)) {
    ended.push_back(pending_.at(token));
    const Message& message = *ended.back()->message;
    if (message.peer == kAnyPeer) told_.emplace(message.envelope.channel, message.envelope.tag);
  }
  for (auto& [key, outgoing] : outgoing_) {
    if (key.first != peer) continue;
    StopStaging(peer, outgoing);
    ended.push_back(outgoing.operation);
  }
  for (const auto& [key, incoming] : incoming_) {
    if (key.first == peer && incoming.operation != nullptr) ended.push_back(incoming.operation);
  }
  const auto is_of_peer = [peer](const auto& entry) { return entry.first.first == peer; };
  std::erase_if(outgoing_, is_of_peer);
  std::erase_if(incoming_, is_of_peer);
  std::erase_if(reading_, [peer](const Key& key) { return key.first == peer; });
  if (const auto held = peers_.extract(peer)) {
    ended.insert(ended.end(), held.mapped().held.begin(), held.mapped().held.end());
  }
  for (const OperationPtr& operation : ended) End(operation, cause);
}

void SetMessages::Fail(const Status& cause) {
  submitted_.clear();
  mailbox_.ForgetReceives();
  peers_.clear();
  for (auto& [key, outgoing] : outgoing_) StopStaging(key.first, outgoing);
  outgoing_.clear();
  incoming_.clear();
  reading_.clear();
  loopback_.clear();
  copied_out_.clear();
  failure_ = cause;
  give_up_at_ = MonotonicSeconds() + kCopySeconds;
  for (const OperationPtr& begun : launches_.Abandon()) {
    begun->message->by_nccl = begun->message->at_device = true;
    at_device_.push_back(begun);
  }
  const std::map<Token, OperationPtr> pending = pending_;
  for (const auto& [token, operation] : pending) {
    if (!operation->message->at_device) End(operation, cause);
  }
}

bool SetMessages::StepFailed(double now, bool has_lane_ended) {
  has_lane_ended_ = has_lane_ended;
  const auto ended = StepDevice();
  if (now < give_up_at_) return ended.ok() && *ended;
  for (const OperationPtr& operation : std::exchange(at_device_, {})) {
    (void)operation->message->copy.release();  // the device may still write to it, so it leaks
    End(operation, failure_ ? *failure_ : left_.at(last_left_));
  }
  return true;
}

void SetMessages::ReceiveWhatCame(const OperationPtr& operation, const Status& cause) {
  const Message& message = *operation->message;
  if (message.is_send || message.released) return finish_(operation, cause);
  const Envelope& wanted = message.envelope;
  const auto arrived = mailbox_.TakeEager(message.peer, wanted.channel, wanted.tag);
  if (!arrived) return finish_(operation, cause);
  if (arrived->envelope != wanted) {
    return finish_(operation, Mismatch(operation, transport_.rank(), arrived->peer, wanted,
                                       arrived->envelope));
  }
  if (Status room = MakeRoom(*operation); !room.ok()) return finish_(operation, room);
  if (!arrived->payload.empty()) {
    std::memcpy(message.place(), arrived->payload.data(), arrived->payload.size());
  }
  operation->result = arrived->peer;
  give_up_at_ = MonotonicSeconds() + kCopySeconds;
  Deliver(operation);
}

void SetMessages::Send(int peer, const MessageFrame& frame) {
  std::vector<std::byte> bytes = Encode(frame);
  if (peer == transport_.rank()) return loopback_.push_back(std::move(bytes));
  transport_.Send(peer, {FrameKind::kMessage, place_.channel}, bytes);
}

void SetMessages::End(const OperationPtr& operation, const Status& status) {
  pending_.erase(operation->token);
  if (operation->on_device) operation->message->copy.reset();
  finish_(operation, status);
}

}  // namespace horoscale
