// SetMessages: CUDA tensors, by copies from and to the host or by NCCL.
#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "platform/clock.h"
#include "runtime/message_memory.h"
#include "runtime/set_messages.h"

namespace horoscale {
namespace {

using Direction = MessageCopies::Direction;

}  // namespace

bool SetMessages::IsOnDevice(const Operation& operation) {
  return operation.on_device != nullptr && operation.message->envelope.bytes > 0;
}

SetMessages::Stream SetMessages::StreamOf(const Operation& operation) {
  const Message& message = *operation.message;
  return {message.peer, message.envelope.channel, message.envelope.tag};
}

// Messages with the same tag are announced in order; those with other tags are not delayed, because
// the work on a caller's stream may depend on them.
void SetMessages::BeginSend(const OperationPtr& operation) {
  const Message& message = *operation->message;
  const bool is_carried =
      message.envelope.bytes > kMaxEagerBytes && launches_.CanCarry(*operation, message.peer);
  if (IsOnDevice(*operation) && !is_carried) {
    if (Status status = CopyToHost(operation); !status.ok()) return End(operation, status);
    return copied_out_[StreamOf(*operation)].push_back(operation);
  }
  const auto before = copied_out_.find(StreamOf(*operation));
  if (before == copied_out_.end()) return AnnounceOrHold(operation);
  before->second.push_back(operation);
}

Status SetMessages::CopyToHost(const OperationPtr& operation) {
  Message& message = *operation->message;
  OnDevice& place = *operation->on_device;
  const uint64_t bytes = message.envelope.bytes;
  auto pinned = AllocatePinnedFor(*operation);
  if (!pinned.ok()) return pinned.status();
  auto copied = copies_.Start(*place.device, place.ready, Direction::kToHost, pinned->get(),
                              message.memory, bytes);
  if (!copied.ok()) return copied.status();
  message.copy = pinned.TakeValue();
  message.at_device = true;
  place.finished = copied.TakeValue();
  at_device_.push_back(operation);
  return Status::Ok();
}

// The message can't be copied: only the send and the receive fail.
void SetMessages::Withdraw(OutgoingEntry outgoing, const Status& cause) {
  const auto& [peer, number] = outgoing->first;
  const std::string_view reason = std::string_view(cause.message()).substr(0, kMaxReasonBytes);
  MessageFrame frame;
  frame.type = MessageFrame::Type::kWithdrawn;
  frame.number = number;
  frame.payload = std::as_bytes(std::span(reason));
  Send(peer, frame);
  EndSend(outgoing, cause);
}

// The message is complete.
void SetMessages::Deliver(const OperationPtr& operation) {
  if (!IsOnDevice(*operation)) return End(operation, Status::Ok());
  Message& message = *operation->message;
  OnDevice& place = *operation->on_device;
  auto copied = copies_.Start(*place.device, place.ready, Direction::kToDevice, message.memory,
                              message.copy.get(), message.envelope.bytes);
  if (!copied.ok()) return End(operation, copied.status());
  message.at_device = true;
  place.finished = copied.TakeValue();
  pending_.emplace(operation->token, operation);  // a failure may have removed it
  at_device_.push_back(operation);
  place.launched.store(true);
  launched_();
}

bool SetMessages::HasLaunched() const {
  return std::any_of(at_device_.begin(), at_device_.end(), [](const OperationPtr& operation) {
    return operation->on_device->launched.load();
  });
}

bool SetMessages::UsesLane() const {
  return launches_.IsIssued() ||
         std::any_of(at_device_.begin(), at_device_.end(),
                     [](const OperationPtr& operation) { return operation->message->by_nccl; });
}

// Kernels of a failing communicator end too, so check for failures after querying the device's
// progress.
Result<bool> SetMessages::StepDevice() {
  std::vector<std::pair<OperationPtr, Status>> ended;
  for (const OperationPtr& operation : at_device_) {
    // NCCL may launch started operations until its communicator has been aborted.
    if (failure_ && operation->message->by_nccl && !has_lane_ended_) continue;
    const CudaEventPtr& finished = operation->on_device->finished;
    const auto is_done = finished == nullptr ? Result<bool>(true) : finished->IsDone();
    if (!is_done.ok() || *is_done) ended.emplace_back(operation, is_done.status());
  }
  if (!failure_ && UsesLane()) HS_RETURN_IF_ERROR(launches_.Check());
  for (const auto& [operation, status] : ended) {
    std::erase(at_device_, operation);
    operation->message->at_device = false;
    HS_RETURN_IF_ERROR(OnDeviceDone(operation, status));
  }
  return !ended.empty();
}

Status SetMessages::OnDeviceDone(const OperationPtr& operation, const Status& status) {
  const Message& message = *operation->message;
  if (!message.is_send || message.by_nccl || failure_) {
    // Copied messages had arrived completely.
    const bool is_lost = failure_ && (message.is_send || message.by_nccl);
    End(operation, is_lost ? *failure_ : status);
    return Status::Ok();
  }
  if (message.number != 0) {  // its receiver waits for it
    HS_RETURN_IF_ERROR(status);
    Pump(message.peer, message.number, outgoing_.at({message.peer, message.number}));
    return Status::Ok();
  }
  const Stream stream = StreamOf(*operation);
  if (!status.ok()) {  // the peer does not know of it
    std::erase(copied_out_.at(stream), operation);
    End(operation, status);
  }
  AnnounceCopied(stream);
  return Status::Ok();
}

void SetMessages::AnnounceCopied(const Stream& stream) {
  const auto found = copied_out_.find(stream);
  std::deque<OperationPtr>& sends = found->second;
  while (!sends.empty() && !sends.front()->message->at_device) {
    const OperationPtr next = std::move(sends.front());
    sends.pop_front();
    AnnounceOrHold(next);
  }
  if (sends.empty()) copied_out_.erase(found);
}

// The message has matched its receive, and NCCL can access both tensors.
void SetMessages::Propose(IncomingEntry incoming) {
  const auto& [peer, number] = incoming->first;
  incoming->second.by_nccl = true;
  MessageFrame frame;
  frame.type = MessageFrame::Type::kPropose;
  frame.number = number;
  frame.stamp = launches_.Propose({peer, transport_.rank(), number});
  Send(peer, frame);
}

Status SetMessages::OnProposed(OutgoingEntry outgoing, uint64_t stamp) {
  const auto [peer, number] = outgoing->first;
  const OperationPtr operation = outgoing->second.operation;
  if (operation->message->copy || !launches_.CanCarry(*operation, peer)) {
    return Status::Protocol("it requested a message over NCCL that was not offered over NCCL");
  }
  const MessageLaunches::Id id{transport_.rank(), peer, number};
  MessageFrame frame;
  frame.type = MessageFrame::Type::kLaunch;
  frame.number = number;
  frame.stamp = std::max(stamp, launches_.Propose(id));
  Send(peer, frame);
  outgoing_.erase(outgoing);
  operation->started_at = MonotonicSeconds();
  HS_RETURN_IF_ERROR(launches_.Agree(id, frame.stamp, operation));
  OnAnswered(peer);
  return Status::Ok();
}

Status SetMessages::OnAgreed(IncomingEntry incoming, uint64_t stamp) {
  const auto [peer, number] = incoming->first;
  if (!incoming->second.by_nccl) {
    return Status::Protocol("it launches a message that was not proposed");
  }
  const OperationPtr operation = std::move(incoming->second.operation);
  incoming_.erase(incoming);
  operation->result = peer;
  return launches_.Agree({peer, transport_.rank(), number}, stamp, operation);
}

void SetMessages::OnLaunched(const OperationPtr& operation) {
  operation->message->by_nccl = operation->message->at_device = true;
  at_device_.push_back(operation);
  operation->on_device->launched.store(true);
  launched_();
}

}  // namespace horoscale
