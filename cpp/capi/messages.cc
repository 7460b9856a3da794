// hs_send and hs_recv.
#include <limits>

#include "core/mailbox.h"
#include "handles.h"

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
  if (given.count < 0) return Status::InvalidArgument("a message of less than 0 elements");
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = given.process_set;
  operation->message = std::make_unique<Message>();
  Message& message = *operation->message;
  message.is_send = is_send;
  message.peer = given.peer;
  message.memory = static_cast<std::byte*>(given.memory);
  message.envelope.tag = given.tag;
  message.envelope.channel = static_cast<uint8_t>(given.channel);
  message.envelope.dtype = static_cast<DataType>(given.dtype);
  if (__builtin_mul_overflow(static_cast<uint64_t>(given.count), SizeOf(message.envelope.dtype),
                             &message.envelope.bytes)) {
    return Status::InvalidArgument("a message is too large");
  }
  if (given.callback != nullptr) {
    operation->callback = [callback = given.callback,
                           user = given.user_data](const Status& status) {
      callback(user, static_cast<hs_code>(status.code()));
    };
  }
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

}  // namespace
}  // namespace horoscale

hs_code hs_send(hs_runtime* runtime, const hs_message* message, hs_handle** out) {
  return horoscale::Start(runtime, message, true, out);
}

hs_code hs_recv(hs_runtime* runtime, const hs_message* message, hs_handle** out) {
  return horoscale::Start(runtime, message, false, out);
}
