#include "runtime/message_launches.h"

#include <algorithm>

namespace horoscale {
namespace {

// Larger than all plan entries: a bit, two members, and enough of the number to distinguish
// messages in flight (kMaxOffers).
constexpr uint64_t kIsMessage = uint64_t{1} << 63;
constexpr int kMemberBits = 20;
constexpr int kNumberBits = 63 - 2 * kMemberBits;

// NCCL's kernels transfer this many messages concurrently, each to or from a different peer,
// whatever their sizes (NCCL_MAX_DEV_WORK_P2P_PER_BATCH in its src/include/device.h); further ones
// start when these are done.
constexpr size_t kMaxTogether = 8;

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
  agreed_.emplace(sequence, Agreed{sequence, operation, place_.IndexOf(peer)});
  return Status::Ok();
}

// A second message between two ranks in one direction would wait for the first one in NCCL, so it
// goes into the next group. The very first one is a group of its own: NCCL connects the two ranks
// with it, and both must connect the same peers at a time.
std::vector<MessageLaunches::Agreed> MessageLaunches::TakeNext() {
  std::vector<Agreed> group;
  for (const uint64_t sequence : order_.NextOf(Incarnation(), kIsMessage)) {
    const auto next = agreed_.find(sequence);
    const uint32_t peer = next->second.peer;
    const bool is_send = next->second.operation->message->is_send;
    const bool follows_another =
        std::any_of(group.begin(), group.end(), [peer, is_send](const Agreed& message) {
          return message.peer == peer && message.operation->message->is_send == is_send;
        });
    const bool is_first = !connected_.contains({peer, is_send});
    if (follows_another || group.size() == kMaxTogether || (is_first && !group.empty())) break;
    group.push_back(std::move(next->second));
    agreed_.erase(next);
    if (!is_first) continue;
    connected_.emplace(peer, is_send);
    break;
  }
  return group;
}

Result<bool> MessageLaunches::Step() {
  if (issued_.empty()) {
    if (agreed_.empty()) return false;
    issued_ = TakeNext();
    if (issued_.empty()) return false;
    HS_RETURN_IF_ERROR(Issue());
  }
  // NCCL launches in its own thread if it needs time; until then the order must be kept.
  const auto is_launched = lane_->communicator()->Poll();
  if (!is_launched.ok()) return is_launched.status();
  if (!*is_launched) return false;
  auto made = lane_->device().Record(lane_->stream());
  if (!made.ok()) return made.status();
  const CudaEventPtr finished = made.TakeValue();
  for (const Agreed& message : std::exchange(issued_, {})) {
    order_.Remove(Incarnation(), message.sequence);
    message.operation->on_device->finished = finished;
    launched_(message.operation);
  }
  return true;
}

Status MessageLaunches::Issue() const {
  std::vector<NcclCommunicator::Transfer> transfers;
  for (const auto& [sequence, operation, peer] : issued_) {
    const CudaEvent& ready = *operation->on_device->ready.event;
    HS_RETURN_IF_ERROR(lane_->device().Wait(lane_->stream(), ready));
    const Message& tensor = *operation->message;
    transfers.push_back({tensor.is_send, tensor.memory, tensor.envelope.bytes, peer});
  }
  HS_RETURN_IF_ERROR(lane_->device().PassGate(lane_->stream()));
  const CudaContextScope scope(lane_->device());
  return lane_->communicator()->Launch(transfers, lane_->stream());
}

std::vector<OperationPtr> MessageLaunches::Abandon() {
  std::vector<OperationPtr> begun;
  for (const Agreed& message : std::exchange(issued_, {})) {
    if (auto given = lane_->device().Record(lane_->stream()); given.ok()) {
      message.operation->on_device->finished = given.TakeValue();
    }
    begun.push_back(message.operation);
  }
  agreed_.clear();
  return begun;
}

}  // namespace horoscale
