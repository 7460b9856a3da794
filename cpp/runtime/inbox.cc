#include "runtime/inbox.h"

#include <utility>

#include "base/process_set_ids.h"
#include "platform/clock.h"
#include "runtime/validate.h"

namespace horoscale {
namespace {

// With more bytes than this, the engine starts immediately.
constexpr int64_t kLittleBytes = 1 << 20;

// The size of an operation that may wait for more; operations that others wait for start
// immediately.
int64_t BytesOf(const Operation& operation) {
  const bool is_waited_for =
      operation.tensors.empty() || operation.on_device || operation.callback != nullptr;
  int64_t bytes = is_waited_for ? kLittleBytes : 0;
  for (const TensorMemory& tensor : operation.tensors) bytes += tensor.rows * tensor.row_bytes;
  return bytes;
}

// No thread waits for a release, which ends with the sender's answer, so it does not keep the
// engine running.
bool IsRelease(const Operation& operation) {
  return operation.message != nullptr && operation.message->released != nullptr;
}

// Messages that a rank sent before it left can be received afterwards.
bool MayHaveCome(const Operation& operation, const Status& failure) {
  return operation.message && !operation.message->is_send && !operation.message->released &&
         failure.code() == StatusCode::kRankFailed;
}

// Operations that the failure of the set does not affect: creating a set by its members, and
// removing such a set.
bool IsForMembersAlone(const Operation& operation) {
  return operation.new_set != nullptr ||
         (operation.request.signature.kind == OpKind::kRemoveProcessSet &&
          IsMadeByMembers(operation.process_set_id));
}

}  // namespace

Status Inbox::Put(const OperationPtr& operation) {
  const std::string& name = operation->request.name;
  std::lock_guard lock(mutex_);
  if (closed_) return {StatusCode::kShutdown, "the runtime has been shut down"};
  const auto found = views_.find(operation->process_set_id);
  if (found == views_.end()) {
    return Status::InvalidArgument("there is no process set " +
                                   std::to_string(operation->process_set_id));
  }
  SetView& view = found->second;
  HS_RETURN_IF_ERROR(ValidateMembership(*operation, view.ranks, view.order, rank_));
  const bool is_message = operation->message != nullptr;
  if (!view.failure.ok() && !(is_message && view.takes_messages) &&
      !MayHaveCome(*operation, view.failure) && !IsForMembersAlone(*operation)) {
    if (harm_.ok() && view.failure.code() == StatusCode::kRankFailed) harm_ = view.failure;
    FailureDetail detail = view.failure.detail();
    detail.process_set_id = operation->process_set_id;
    detail.tensor = is_message ? operation->DisplayName() : name;
    return {view.failure.code(), view.failure.message(), std::move(detail)};
  }
  // Messages have no communicator.
  if (operation->on_device && !is_message) {
    HS_RETURN_IF_ERROR(BindDevice(*operation, view));
  }
  if (!name.empty() && !view.pending_names.insert(name).second) {
    return {StatusCode::kDuplicateName,
            "an operation named \"" + name + "\" is pending on process set " +
                std::to_string(operation->process_set_id) +
                "; use a unique name for each operation, or wait for the first one",
            {{}, operation->process_set_id, name}};
  }
  operation->token = next_token_++;
  operation->enqueued_at = MonotonicSeconds();
  if (!IsRelease(*operation)) unfinished_.fetch_add(1);
  input_.push_back(operation);
  input_bytes_ += BytesOf(*operation);
  has_input_.store(true);
  return Status::Ok();
}

// The communicator of a set belongs to one device of each rank.
Status Inbox::BindDevice(const Operation& operation, SetView& view) {
  if (IsMadeByMembers(operation.process_set_id)) {
    return {StatusCode::kUnsupported,
            "process set " + std::to_string(operation.process_set_id) +
                " was created by its members only and does not support CUDA tensors, because "
                "operations on them are launched in one order over all process sets: let all ranks "
                "add the set",
            {{}, operation.process_set_id, operation.request.name}};
  }
  const CudaDevice* const device = operation.on_device->device;
  if (view.device == nullptr) view.device = device;
  if (view.device == device) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          "the tensors are on CUDA device " + std::to_string(device->ordinal()) +
              ", but process set " + std::to_string(operation.process_set_id) +
              " has used device " + std::to_string(view.device->ordinal()) +
              " on this rank: a process set uses one device per rank",
          {{}, operation.process_set_id, operation.request.name}};
}

size_t Inbox::Gathering() const {
  std::lock_guard lock(mutex_);
  const bool is_all = unfinished_.load() == static_cast<int64_t>(input_.size());
  return is_all && input_bytes_ < kLittleBytes ? input_.size() : 0;
}

std::vector<int> Inbox::SetIds() const {
  std::lock_guard lock(mutex_);
  std::vector<int> ids;
  for (const auto& [id, view] : views_) ids.push_back(id);
  return ids;
}

std::optional<std::vector<int>> Inbox::SetRanks(int id) const {
  std::lock_guard lock(mutex_);
  const auto found = views_.find(id);
  if (found == views_.end()) return std::nullopt;
  return found->second.order;
}

bool Inbox::Close() {
  std::lock_guard lock(mutex_);
  return !std::exchange(closed_, true);
}

bool Inbox::IsClosed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

std::vector<OperationPtr> Inbox::Take(std::vector<OperationPtr> old) {
  old.clear();
  std::lock_guard lock(mutex_);
  has_input_.store(false);
  input_bytes_ = 0;
  return std::exchange(input_, std::move(old));
}

void Inbox::OnFinished(const Operation& operation, const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (const auto view = views_.find(operation.process_set_id); view != views_.end()) {
      view->second.pending_names.erase(operation.request.name);
    }
    if (harm_.ok() && status.code() == StatusCode::kRankFailed) harm_ = status;
  }
  if (!IsRelease(operation)) unfinished_.fetch_sub(1);
}

void Inbox::OnSetAdded(int id, const std::vector<int>& ranks, const std::vector<int>& order) {
  std::lock_guard lock(mutex_);
  views_[id].ranks = ranks;
  views_[id].order = order;
}

void Inbox::OnSetRemoved(int id) {
  std::lock_guard lock(mutex_);
  views_.erase(id);
}

void Inbox::OnSetFailed(int id, const Status& cause) {
  std::lock_guard lock(mutex_);
  const auto view = views_.find(id);
  if (view == views_.end()) return;  // it is being removed
  view->second.failure = cause;
  view->second.takes_messages = false;
  set_lost_ = true;
}

void Inbox::OnMemberLeft(int id, const Status& cause) {
  std::lock_guard lock(mutex_);
  const auto view = views_.find(id);
  if (view == views_.end()) return;  // it is being removed
  view->second.failure = cause;
  set_lost_ = true;
}

Status Inbox::harm() const {
  std::lock_guard lock(mutex_);
  return harm_;
}

bool Inbox::HasLostSet() const {
  std::lock_guard lock(mutex_);
  return set_lost_;
}

}  // namespace horoscale
