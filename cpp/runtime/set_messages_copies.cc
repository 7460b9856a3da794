// SetMessages: the copies of CUDA tensors, from and to the host.
#include <algorithm>
#include <utility>

#include "runtime/set_messages.h"

namespace horoscale {
namespace {

using Direction = MessageCopies::Direction;

bool IsCopied(const Operation& operation) {
  return operation.on_device != nullptr && operation.message->envelope.bytes > 0;
}

}  // namespace

SetMessages::Stream SetMessages::StreamOf(const Operation& operation) {
  const Message& message = *operation.message;
  return {message.peer, message.envelope.channel, message.envelope.tag};
}

// Messages of one tag are announced in the order in which they were sent, those of others
// meanwhile: what one stream of the caller's waits for may be what they bring about.
void SetMessages::BeginSend(const OperationPtr& operation) {
  if (IsCopied(*operation)) {
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
  auto pinned = place.device->AllocatePinned(bytes);
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

// All of the message has come.
void SetMessages::Deliver(const OperationPtr& operation) {
  if (!IsCopied(*operation)) return End(operation, Status::Ok());
  Message& message = *operation->message;
  OnDevice& place = *operation->on_device;
  auto copied = copies_.Start(*place.device, place.ready, Direction::kToDevice, message.memory,
                              message.copy.get(), message.envelope.bytes);
  if (!copied.ok()) return End(operation, copied.status());
  message.at_device = true;
  place.finished = copied.TakeValue();
  pending_.emplace(operation->token, operation);  // after a failure it isn't there
  at_device_.push_back(operation);
  place.launched.store(true);
  launched_();
}

bool SetMessages::HasLaunched() const {
  return std::any_of(at_device_.begin(), at_device_.end(), [](const OperationPtr& operation) {
    return operation->on_device->launched.load();
  });
}

bool SetMessages::StepCopies() {
  std::vector<std::pair<OperationPtr, Status>> copied;
  std::erase_if(at_device_, [&copied](const OperationPtr& operation) {
    const auto is_done = operation->on_device->finished->IsDone();
    if (is_done.ok() && !*is_done) return false;
    copied.emplace_back(operation, is_done.status());
    return true;
  });
  for (const auto& [operation, status] : copied) OnCopied(operation, status);
  return !copied.empty();
}

void SetMessages::OnCopied(const OperationPtr& operation, const Status& status) {
  operation->message->at_device = false;
  if (!operation->message->is_send) return End(operation, status);
  if (failure_) return End(operation, *failure_);
  const Stream stream = StreamOf(*operation);
  if (!status.ok()) {  // the peer has not heard of it
    std::erase(copied_out_.at(stream), operation);
    End(operation, status);
  }
  AnnounceCopied(stream);
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

}  // namespace horoscale
