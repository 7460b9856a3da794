// hs_send, hs_recv, and the functions for views.
#include <limits>
#include <utility>

#include "core/mailbox.h"
#include "operations.h"

namespace horoscale {
namespace {

Result<OperationPtr> MessageOperation(const hs_message& given, bool is_send) {
  HS_RETURN_IF_ERROR(CheckSize("hs_message", given.struct_size, sizeof(hs_message)));
  if (given.dtype < 0 || given.dtype >= kNumDataTypes) {
    return Status::InvalidArgument("unknown element type " + std::to_string(given.dtype));
  }
  if (given.channel < 0 || given.channel > std::numeric_limits<uint8_t>::max()) {
    return Status::InvalidArgument("unknown channel " + std::to_string(given.channel));
  }
  if (given.count < 0) {
    return Status::InvalidArgument("the message has a negative number of elements");
  }
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = given.process_set;
  operation->message = std::make_unique<Message>();
  Message& message = *operation->message;
  message.is_send = is_send;
  message.is_view = !is_send && given.is_view != 0;
  message.peer = given.peer;
  message.memory = static_cast<std::byte*>(given.memory);
  message.envelope.tag = given.tag;
  message.envelope.channel = static_cast<uint8_t>(given.channel);
  message.envelope.dtype = static_cast<DataType>(given.dtype);
  if (__builtin_mul_overflow(static_cast<uint64_t>(given.count), SizeOf(message.envelope.dtype),
                             &message.envelope.bytes)) {
    return Status::InvalidArgument("the message is too large");
  }
  if (message.is_view && given.device != nullptr) {
    return Status::InvalidArgument(
        "views are supported for host memory only: receive a message on a device with a copy");
  }
  if (given.callback != nullptr) {
    operation->callback = [callback = given.callback,
                           user = given.user_data](const Status& status) {
      callback(user, static_cast<hs_code>(status.code()));
    };
  }
  if (given.device != nullptr) HS_RETURN_IF_ERROR(AttachDevice(*given.device, operation.get()));
  return operation;
}

hs_code Start(hs_runtime* runtime, const hs_message* message, bool is_send, hs_handle** out) {
  if (Status status = CheckGiven(message, out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  auto operation = MessageOperation(*message, is_send);
  if (!operation.ok()) return ToCode(operation.status());
  Status status = runtime->job->runtime().Enqueue(*operation, message->will_wait != 0);
  if (!status.ok()) return ToCode(status);
  *out = new hs_handle{operation.TakeValue(), runtime};
  return HS_OK;
}

// Whether the view's memory is, or may be, still its sender's.
bool MustBeReleased(const Operation& operation) {
  const bool is_done = operation.done.load();
  return !is_done || (operation.status.ok() && operation.message->number != 0);
}

Status Release(hs_runtime* runtime, const OperationPtr& view) {
  HS_RETURN_IF_ERROR(CheckAlive(runtime));
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = view->process_set_id;
  operation->message = std::make_unique<Message>();
  Message& message = *operation->message;
  message.is_send = false;
  message.peer = view->message->peer;
  message.envelope = view->message->envelope;
  message.released = view;
  const Status status = runtime->job->runtime().Enqueue(operation, false);
  // The runtime or the set has ended: there is no sender to release it to.
  const bool is_over =
      status.code() == StatusCode::kShutdown || status.code() == StatusCode::kInvalidArgument;
  return is_over ? Status::Ok() : status;
}

}  // namespace
}  // namespace horoscale

hs_code hs_send(hs_runtime* runtime, const hs_message* message, hs_handle** out) {
  return horoscale::Start(runtime, message, true, out);
}

hs_code hs_recv(hs_runtime* runtime, const hs_message* message, hs_handle** out) {
  return horoscale::Start(runtime, message, false, out);
}

int32_t hs_is_busy(const hs_runtime* runtime) {
  return runtime != nullptr && runtime->job->runtime().IsBusy() ? 1 : 0;
}

const void* hs_view(const hs_handle* handle) {
  if (hs_poll(handle) == 0) return nullptr;
  const horoscale::Operation& operation = *handle->operation;
  const bool is_view = operation.message && operation.message->is_view;
  return is_view && operation.status.ok() ? operation.message->memory : nullptr;
}

hs_code hs_release(hs_runtime* runtime, hs_handle* handle) {
  using horoscale::Status;
  using horoscale::ToCode;
  if (Status status = horoscale::CheckGiven(handle); !status.ok()) return ToCode(status);
  if (!handle->operation->message || !handle->operation->message->is_view) {
    return ToCode(Status::InvalidArgument("the handle is not a view of a message"));
  }
  if (std::exchange(handle->is_released, true)) return HS_OK;
  if (!horoscale::MustBeReleased(*handle->operation)) return HS_OK;
  return ToCode(horoscale::Release(runtime, handle->operation));
}

void hs_view_free(hs_runtime* runtime, hs_handle* handle) {
  if (handle == nullptr) return;
  (void)hs_release(runtime, handle);
  hs_handle_free(handle);
}
