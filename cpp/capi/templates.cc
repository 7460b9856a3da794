// hs_prepare, and the functions that run prepared operations.
#include <atomic>
#include <utility>

#include "operations.h"

namespace horoscale {

// A finished operation that the next one reuses. Any number of threads may share it; while one uses
// it, the others allocate new operations.
class SpareOperation {
 public:
  OperationPtr Take() {
    if (is_used_.exchange(true)) return nullptr;
    OperationPtr operation = std::move(operation_);
    is_used_.store(false);
    return operation;
  }
  // Keeps the operation only if there are no other references to it.
  void Keep(OperationPtr operation) {
    if (operation.use_count() != 1 || is_used_.exchange(true)) return;
    operation_.swap(operation);
    is_used_.store(false);
  }

 private:
  std::atomic<bool> is_used_{false};
  OperationPtr operation_;
};

}  // namespace horoscale

struct hs_template {
  hs_runtime* runtime;
  horoscale::OperationPtr model;  // never enqueued
  mutable horoscale::SpareOperation spare = {};
};

namespace horoscale {
namespace {

// The handle of the thread's last hs_run_again() that timed out.
thread_local std::unique_ptr<hs_handle> unfinished;

// Whether the library allocates the result if no memory is given for it.
bool AllocatesResult(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}

Status CheckRepeatable(const Operation& model) {
  const OpKind kind = model.request.signature.kind;
  const bool has_room = AllocatesResult(kind) || kind == OpKind::kAllreduce ||
                        kind == OpKind::kBroadcast || kind == OpKind::kReducescatter;
  if (has_room && model.tensors.size() == 1 && !model.callback && !model.on_device) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "only an allreduce, broadcast, reducescatter, allgather or alltoall of one tensor in host "
      "memory and without a callback can be prepared");
}

// Creates an operation, reusing a finished one if there is one.
OperationPtr MakeLike(const Operation& model, OperationPtr over) {
  if (over != nullptr) {
    over->BeginAnew();
    return over;
  }
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = model.process_set_id;
  operation->request = model.request;
  operation->tensors = model.tensors;
  operation->splits = model.splits;
  operation->sealed = model.sealed;
  return operation;
}

Result<OperationPtr> Repeat(const hs_template& prepared, uintptr_t in, uintptr_t out) {
  const Operation& model = *prepared.model;
  // An allocated result could not be fetched.
  if (out == 0 && AllocatesResult(model.request.signature.kind)) {
    return Status::InvalidArgument("a prepared operation needs memory for its result");
  }
  OperationPtr operation = MakeLike(model, prepared.spare.Take());
  operation->tensors.front().in = reinterpret_cast<const std::byte*>(in);
  operation->tensors.front().out = reinterpret_cast<std::byte*>(out);
  return operation;
}

}  // namespace
}  // namespace horoscale

using horoscale::CheckAlive;
using horoscale::CheckGiven;
using horoscale::OperationPtr;
using horoscale::Status;
using horoscale::ToCode;

hs_code hs_prepare(hs_runtime* runtime, const hs_request* request, hs_template** out) {
  if (Status status = CheckGiven(request, out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  auto model = horoscale::OperationOf(runtime, *request);
  if (!model.ok()) return ToCode(model.status());
  if (Status status = horoscale::CheckRepeatable(**model); !status.ok()) return ToCode(status);
  *out = new hs_template{runtime, model.TakeValue()};
  return HS_OK;
}

hs_handle* hs_enqueue_again(const hs_template* prepared, uintptr_t in, uintptr_t out,
                            int32_t will_wait) {
  Status status = CheckGiven(prepared);
  if (status.ok()) status = CheckAlive(prepared->runtime);
  if (status.ok()) {
    auto operation = horoscale::Repeat(*prepared, in, out);
    status = operation.status();
    if (status.ok()) {
      status = prepared->runtime->job->runtime().Enqueue(*operation, will_wait != 0);
    }
    if (status.ok()) return new hs_handle{operation.TakeValue(), prepared->runtime};
  }
  (void)ToCode(status);
  return nullptr;
}

hs_code hs_run_again(const hs_template* prepared, uintptr_t in, uintptr_t out, double seconds) {
  if (Status status = CheckGiven(prepared); !status.ok()) return ToCode(status);
  if (Status status = CheckAlive(prepared->runtime); !status.ok()) return ToCode(status);
  auto repeated = horoscale::Repeat(*prepared, in, out);
  if (!repeated.ok()) return ToCode(repeated.status());
  OperationPtr operation = repeated.TakeValue();
  horoscale::Runtime& job = prepared->runtime->job->runtime();
  if (Status status = job.Enqueue(operation, true); !status.ok()) return ToCode(status);
  Status status = job.Wait(operation, seconds);
  if (operation->done.load()) {
    status = operation->status;
    if (status.ok()) prepared->spare.Keep(std::move(operation));
    return ToCode(status);
  }
  horoscale::unfinished.reset(new hs_handle{std::move(operation), prepared->runtime});
  return ToCode(status);
}

hs_handle* hs_take_unfinished(void) { return horoscale::unfinished.release(); }

void hs_template_free(hs_template* prepared) { delete prepared; }
