// How a call takes its tensors to the runtime and tells XLA of the end.
#include "call.h"

#include <mutex>
#include <utility>

namespace horoscale::xla {
namespace {

constexpr const char* kNoRuntime = "horoscale is not initialized: call hvd.init() first";

// Held while the operations of a call are enqueued, so that those of another don't come between:
// most have no names and are matched by their order.
std::mutex runtime_mutex;
hs_runtime* current_runtime = nullptr;

int32_t DataTypeOf(DataType type) {
  switch (type) {
    case kPred:
      return HS_BOOL;
    case kS8:
      return HS_INT8;
    case kS16:
      return HS_INT16;
    case kS32:
      return HS_INT32;
    case kS64:
      return HS_INT64;
    case kU8:
      return HS_UINT8;
    case kU16:
      return HS_UINT16;
    case kF16:
      return HS_FLOAT16;
    case kF32:
      return HS_FLOAT32;
    case kF64:
      return HS_FLOAT64;
    case kC64:
      return HS_COMPLEX64;
    case kBF16:
      return HS_BFLOAT16;
    case kC128:
      return HS_COMPLEX128;
  }
  return -1;  // which the runtime refuses
}

ErrorCode CodeOf(hs_code code) {
  switch (code) {
    case HS_INVALID_ARGUMENT:
    case HS_DUPLICATE_NAME:
      return kInvalidArgument;
    case HS_NOT_INITIALIZED:
    case HS_MISMATCH:
      return kFailedPrecondition;
    case HS_RANK_FAILED:
    case HS_JOINED:
      return kUnknown;  // as TensorFlow's
    case HS_SHUTDOWN:
      return kAborted;
    case HS_UNIMPLEMENTED:
    case HS_UNSUPPORTED:
      return kUnimplemented;
    default:
      return kInternal;
  }
}

}  // namespace

Error* Call::Start(CallFrame* frame, Settings settings) {
  auto* call = new Call(frame->api, std::move(settings));
  if (Error* error = call->completion_.Begin(frame)) {
    delete call;
    return error;
  }
  call->TakeTensors(*frame);
  call->EnqueueAll();
  return nullptr;
}

Call::~Call() {
  for (hs_handle* handle : handles_) hs_handle_free(handle);
}

// The frame is gone when the handler returns, but not the memory of the tensors; shapes are copied
// when they are enqueued.
void Call::TakeTensors(const CallFrame& frame) {
  for (int64_t i = 0; i < frame.arguments.size; ++i) {
    const Buffer& in = *frame.arguments.buffers[i];
    const Buffer& out = *frame.results.buffers[i];
    tensors_.push_back(
        {in.data, out.data, DataTypeOf(in.dtype), static_cast<int32_t>(in.rank), in.dims, 0});
  }
}

void Call::EnqueueAll() {
  expected_ = settings_.groups.size() + 1;
  {
    const std::lock_guard lock(runtime_mutex);
    size_t first = 0;
    for (const Group& group : settings_.groups) {
      if (!Enqueue(Request(first, group))) break;
      first += group.tensors;
    }
  }
  const size_t refused = settings_.groups.size() - handles_.size();
  Arrive(refused + 1);
}

bool Call::Enqueue(const hs_request& request) {
  if (current_runtime == nullptr) {
    failure_ = HS_NOT_INITIALIZED;
    reason_ = kNoRuntime;
    return false;
  }
  hs_handle* handle = nullptr;
  failure_ = hs_enqueue(current_runtime, &request, &handle);
  if (failure_ == HS_OK) {
    handles_.push_back(handle);
  } else {
    reason_ = hs_error()->message;
  }
  return failure_ == HS_OK;
}

hs_request Call::Request(size_t first, const Group& group) const {
  hs_request request{};
  request.struct_size = sizeof(request);
  request.kind = HS_ALLREDUCE;
  request.name = group.name.empty() ? nullptr : group.name.c_str();
  request.process_set = static_cast<int32_t>(settings_.process_set);
  request.tensors = tensors_.data() + first;
  request.num_tensors = static_cast<int32_t>(group.tensors);
  request.reduce_op = static_cast<int32_t>(settings_.reduce_op);
  request.prescale = settings_.prescale;
  request.postscale = settings_.postscale;
  request.encoding = static_cast<int32_t>(group.encoding);
  request.callback = OnDone;
  request.user_data = const_cast<Call*>(this);
  return request;
}

void Call::OnDone(void* call, hs_code) { static_cast<Call*>(call)->Arrive(1); }

void Call::Arrive(size_t count) {
  if (expected_.fetch_sub(count) == count) End();
}

void Call::End() {
  for (hs_handle* handle : handles_) {
    const hs_code code = hs_wait(handle, 0);  // done: it tells how it went
    if (failure_ == HS_OK && code != HS_OK) {
      failure_ = code;
      reason_ = hs_error()->message;
    }
  }
  Completion completion = completion_;
  const hs_code failure = failure_;
  const std::string reason = std::move(reason_);
  delete this;  // what XLA does when it is told may take long
  if (failure == HS_OK) {
    completion.Succeed();
  } else {
    completion.Fail(CodeOf(failure), reason.c_str());
  }
}

}  // namespace horoscale::xla

void horoscale_xla_set_runtime(hs_runtime* runtime) {
  const std::lock_guard lock(horoscale::xla::runtime_mutex);
  horoscale::xla::current_runtime = runtime;
}
