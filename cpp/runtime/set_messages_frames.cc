// SetMessages: handlers of other members' frames.
#include <cstring>
#include <utility>

#include "platform/clock.h"
#include "platform/log.h"
#include "runtime/message_mismatch.h"
#include "runtime/set_messages.h"

namespace horoscale {
namespace {

using FrameType = MessageFrame::Type;

// Bytes of one message in flight.
constexpr uint64_t kWindowBytes = 8 * kMaxDataFrameBytes;

}  // namespace

void SetMessages::Pump(int peer, uint64_t number, Outgoing& outgoing) {
  const Message& message = *outgoing.operation->message;
  MessageFrame frame;
  frame.type = FrameType::kData;
  frame.number = number;
  while (outgoing.sent < message.envelope.bytes && outgoing.sent - outgoing.taken < kWindowBytes) {
    const uint64_t bytes =
        std::min<uint64_t>(kMaxDataFrameBytes, message.envelope.bytes - outgoing.sent);
    frame.payload = {message.place() + outgoing.sent, bytes};
    Send(peer, frame);
    outgoing.sent += bytes;
  }
  outgoing.operation->started_at = MonotonicSeconds();
}

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
    case FrameType::kPropose:
    case FrameType::kStage:
      return OnAnswer(from_rank, frame);
    case FrameType::kRefused:
      return OnRefused(from_rank, frame);
    case FrameType::kData:
    case FrameType::kConfirmed:
    case FrameType::kLaunch:
    case FrameType::kWithdrawn:
      return OnContent(from_rank, frame);
    case FrameType::kCredit:
      return PeerAt(from_rank).credit.Give(frame.bytes);
  }
  return Status::Ok();
}

Status SetMessages::OnArrival(int from_rank, const MessageFrame& frame) {
  const bool is_eager = frame.type == FrameType::kEager;
  const auto receive =
      mailbox_.Arrive(from_rank, frame.number, frame.envelope, is_eager, PeerAt(from_rank).limits);
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
  if (found == outgoing_.end()) {
    return Status::Protocol("it answered a message that was not offered");
  }
  if (frame.type == FrameType::kTaken) return OnTaken(found, frame.bytes);
  Outgoing& outgoing = found->second;
  if (outgoing.by_frames) return Status::Protocol("it requested a message twice");
  if (frame.type == FrameType::kPropose) return OnProposed(found, frame.stamp);
  if (frame.type == FrameType::kStage) return OnStage(found, frame.use);
  StopStaging(from_rank, outgoing);
  outgoing.by_frames = true;
  if (IsOnDevice(*outgoing.operation) && !outgoing.operation->message->copy) {
    outgoing.operation->message->number = frame.number;
    if (Status copied = CopyToHost(outgoing.operation); !copied.ok()) Withdraw(found, copied);
  } else {
    Pump(from_rank, frame.number, outgoing);
  }
  OnAnswered(from_rank);
  return Status::Ok();
}

Status SetMessages::OnTaken(OutgoingEntry found, uint64_t bytes) {
  const auto [peer, number] = found->first;
  Outgoing& outgoing = found->second;
  const uint64_t all = outgoing.operation->message->envelope.bytes;
  const uint64_t most = outgoing.by_frames ? outgoing.sent : all;
  const uint64_t least = outgoing.by_frames ? outgoing.taken : all;
  // Data that is being copied from a device has not been sent.
  const bool is_to_come = outgoing.by_frames && outgoing.operation->message->at_device;
  if (bytes < least || bytes > most || is_to_come) {
    return Status::Protocol("it acknowledged data that was not sent to it");
  }
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
    if (found->second.by_frames) {
      return Status::Protocol("it refused a message that it had requested");
    }
    const OperationPtr& operation = found->second.operation;
    EndSend(found, Mismatch(operation, from_rank, transport_.rank(), frame.envelope,
                            operation->message->envelope));
    OnAnswered(from_rank);
    return Status::Ok();
  }
  if (frame.number == 0 || frame.number >= PeerAt(from_rank).next_number) {
    return Status::Protocol("it refused a message that was not sent");
  }
  // It was a small message, whose send has already ended.
  Log(LogLevel::kWarning, "a message to rank " + std::to_string(from_rank) + ", tag " +
                              std::to_string(frame.envelope.tag) + ", on process set " +
                              std::to_string(place_.id()) + " was not received: rank " +
                              std::to_string(from_rank) + " receives " + Describe(frame.envelope));
  return Status::Ok();
}

Status SetMessages::OnContent(int from_rank, const MessageFrame& frame) {
  const auto found = incoming_.find({from_rank, frame.number});
  if (frame.type == FrameType::kLaunch && found != incoming_.end()) {
    return OnAgreed(found, frame.stamp);
  }
  const bool is_confirmed = frame.type == FrameType::kConfirmed;
  if (found == incoming_.end() || found->second.by_frames == is_confirmed) {
    return Status::Protocol("it sent data of a message that was not requested");
  }
  if (frame.type == FrameType::kWithdrawn) return OnWithdrawn(found, frame);
  if (!is_confirmed) return OnData(found, frame);
  if (!found->second.told) return Status::Protocol("it confirmed a message that was not read");
  EndReceive(found);
  return Status::Ok();
}

Status SetMessages::OnData(IncomingEntry found, const MessageFrame& frame) {
  const int from_rank = found->first.first;
  Incoming& incoming = found->second;
  const Message& message = *incoming.operation->message;
  const uint64_t left = message.envelope.bytes - incoming.taken;
  if (frame.payload.size() > left) {
    return Status::Protocol("it sent a message that is larger than announced");
  }
  std::memcpy(message.place() + incoming.taken, frame.payload.data(), frame.payload.size());
  incoming.taken += frame.payload.size();
  incoming.operation->started_at = MonotonicSeconds();
  MessageFrame taken;
  taken.type = FrameType::kTaken;
  taken.number = frame.number;
  taken.bytes = incoming.taken;
  Send(from_rank, taken);
  if (incoming.taken < message.envelope.bytes) return Status::Ok();
  EndReceive(found);
  ClearNext(from_rank);
  return Status::Ok();
}

// It was requested, and no data has arrived: only this receive fails.
Status SetMessages::OnWithdrawn(IncomingEntry found, const MessageFrame& frame) {
  const int from_rank = found->first.first;
  if (found->second.taken > 0) {
    return Status::Protocol("it withdrew a message that it had begun to send");
  }
  const OperationPtr operation = std::move(found->second.operation);
  incoming_.erase(found);
  const std::string reason(reinterpret_cast<const char*>(frame.payload.data()),
                           frame.payload.size());
  const std::string name = operation->DisplayName();
  End(operation, {StatusCode::kSystem,
                  name + " on process set " + std::to_string(place_.id()) + ": rank " +
                      std::to_string(from_rank) + " could not send it: " + reason,
                  {{from_rank}, place_.id(), ""}});
  ClearNext(from_rank);
  return Status::Ok();
}

// A message that was sent in frames is complete.
void SetMessages::ClearNext(int from_rank) {
  Peer& peer = PeerAt(from_rank);
  --peer.coming;
  if (peer.uncleared.empty()) return;
  const uint64_t next = peer.uncleared.front();
  peer.uncleared.pop_front();
  Clear(from_rank, next);
}

}  // namespace horoscale
