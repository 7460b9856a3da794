// Access to the runtime, and its errors as TensorFlow's.
#include "runtime.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "raii.h"

namespace horoscale::tensorflow {
namespace {

constexpr const char* kNoRuntime = "horoscale is not initialized: call hvd.init() first";

std::shared_mutex runtime_mutex;
hs_runtime* current_runtime = nullptr;

TF_Code CodeOf(hs_code code) {
  switch (code) {
    case HS_INVALID_ARGUMENT:
    case HS_DUPLICATE_NAME:
      return TF_INVALID_ARGUMENT;
    case HS_NOT_INITIALIZED:
    case HS_MISMATCH:
      return TF_FAILED_PRECONDITION;
    case HS_RANK_FAILED:
    case HS_JOINED:
      return TF_UNKNOWN;  // as Horovod's; TensorFlow hides an UNAVAILABLE that is not its own
    case HS_SHUTDOWN:
      return TF_ABORTED;
    case HS_UNIMPLEMENTED:
    case HS_UNSUPPORTED:
      return TF_UNIMPLEMENTED;
    default:
      return TF_INTERNAL;
  }
}

}  // namespace

CurrentRuntime::CurrentRuntime() : lock_(runtime_mutex), runtime_(current_runtime) {}

hs_code CurrentRuntime::Topology(hs_topology* out) const {
  return runtime_ == nullptr ? HS_NOT_INITIALIZED : hs_get_topology(runtime_, out);
}

hs_code CurrentRuntime::MembershipOf(int32_t process_set, Membership* out) const {
  hs_topology topology{};
  if (hs_code code = Topology(&topology); code != HS_OK) return code;
  std::vector<int32_t> ranks(static_cast<size_t>(topology.size));
  const hs_code code =
      hs_process_set_ranks(runtime_, process_set, ranks.data(), topology.size, &out->size);
  if (code != HS_OK) return code;
  out->rank = topology.rank;
  const auto end = ranks.begin() + out->size;
  const auto own = std::find(ranks.begin(), end, topology.rank);
  out->position = own == end ? -1 : static_cast<int32_t>(own - ranks.begin());
  return HS_OK;
}

hs_code CurrentRuntime::Enqueue(const hs_request& request, hs_handle** out) const {
  return runtime_ == nullptr ? HS_NOT_INITIALIZED : hs_enqueue(runtime_, &request, out);
}

hs_code CurrentRuntime::Start(const hs_message& message, bool is_send, hs_handle** out) const {
  if (runtime_ == nullptr) return HS_NOT_INITIALIZED;
  return is_send ? hs_send(runtime_, &message, out) : hs_recv(runtime_, &message, out);
}

void FailNow(TF_OpKernelContext* context, hs_code code) {
  const char* message = code == HS_NOT_INITIALIZED ? kNoRuntime : hs_error()->message;
  const Status status(CodeOf(code), message);
  TF_OpKernelContext_Failure(context, status.get());
}

}  // namespace horoscale::tensorflow

void horoscale_tensorflow_set_runtime(hs_runtime* runtime) {
  const std::unique_lock lock(horoscale::tensorflow::runtime_mutex);
  horoscale::tensorflow::current_runtime = runtime;
}
