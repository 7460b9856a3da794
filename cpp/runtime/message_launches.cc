#include "runtime/message_launches.h"

#include <algorithm>

namespace horoscale {
namespace {

// Above all plan entries: a bit, two members, and as much of the number as tells those that may be
// under way apart (kMaxOffers).
constexpr uint64_t kIsMessage = uint64_t{1} << 63;
constexpr int kMemberBits = 20;
constexpr int kNumberBits = 63 - 2 * kMemberBits;

}  // namespace

uint64_t MessageLaunches::SequenceOf(const Id& id) const {
  const uint64_t sender = place_.IndexOf(id.sender);
  const uint64_t receiver = place_.IndexOf(id.receiver);
  const uint64_t number = id.number & ((uint64_t{1} << kNumberBits) - 1);
  return kIsMessage | sender << (kMemberBits + kNumberBits) | receiver << kNumberBits | number;
}

bool MessageLaunches::CanCarry(const Operation& operation, int peer) const {
  if (operation.on_device == nullptr || peer == place_.rank ||
      place_.ranks.size() >= (size_t{1} << kMemberBits)) {
    return false;
  }
  const DeviceLane* const lane = lane_in_order_();
  return lane != nullptr && &lane->device() == operation.on_device->device;
}

Status MessageLaunches::Agree(const Id& id, uint64_t stamp, const OperationPtr& operation) {
  const uint64_t sequence = SequenceOf(id);
  HS_RETURN_IF_ERROR(order_.Agree(Incarnation(), {sequence, stamp}));
  lane_ = lane_in_order_();
  const int peer = id.sender == place_.rank ? id.receiver : id.sender;
  agreed_.push_back({sequence, operation, place_.IndexOf(peer)});
  return Status::Ok();
}

Result<bool> MessageLaunches::Step() {
  if (agreed_.empty()) return false;
  if (!is_issued_) {
    const auto next = std::find_if(agreed_.begin(), agreed_.end(), [this](const Agreed& message) {
      return order_.IsNext(Incarnation(), message.sequence);
    });
    if (next == agreed_.end()) return false;
    std::swap(*next, agreed_.front());
    is_issued_ = true;
    HS_RETURN_IF_ERROR(Issue(agreed_.front()));
  }
  // NCCL launches in a thread of its own where it needs time; the order holds until then.
  const auto is_launched = lane_->communicator()->Poll();
  if (!is_launched.ok()) return is_launched.status();
  if (!*is_launched) return false;
  auto finished = lane_->device().Record(lane_->stream());
  if (!finished.ok()) return finished.status();
  const Agreed message = std::move(agreed_.front());
  agreed_.pop_front();
  is_issued_ = false;
  order_.Remove(Incarnation(), message.sequence);
  message.operation->on_device->finished = finished.TakeValue();
  launched_(message.operation);
  return true;
}

Status MessageLaunches::Issue(const Agreed& message) const {
  const CudaEvent& ready = *message.operation->on_device->ready.event;
  HS_RETURN_IF_ERROR(lane_->device().Wait(lane_->stream(), ready));
  HS_RETURN_IF_ERROR(lane_->device().PassGate(lane_->stream()));
  const Message& tensor = *message.operation->message;
  const CudaContextScope scope(lane_->device());
  return lane_->communicator()->Transfer(tensor.is_send, tensor.memory, tensor.envelope.bytes,
                                         message.peer, lane_->stream());
}

OperationPtr MessageLaunches::Abandon() {
  OperationPtr begun;
  if (is_issued_) {
    begun = agreed_.front().operation;
    if (auto given = lane_->device().Record(lane_->stream()); given.ok()) {
      begun->on_device->finished = given.TakeValue();
    }
  }
  agreed_.clear();
  is_issued_ = false;
  return begun;
}

}  // namespace horoscale
