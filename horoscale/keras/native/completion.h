// Completion: what XLA waits for where a handler has returned before its work is done.
#pragma once

#include "ffi.h"

namespace horoscale::xla {

// Returns an error that XLA owns.
inline Error* MakeError(const Api* api, ErrorCode code, const char* message) {
  CreateErrorArguments arguments{{sizeof(arguments), nullptr}, message, code};
  return api->create_error(&arguments);
}

class Completion {
 public:
  explicit Completion(const Api* api) : api_(api) {}

  // Tells XLA, by the frame, to wait. Returns null, or the error that the handler has to return.
  Error* Begin(CallFrame* frame) {
    FutureArguments arguments{{sizeof(arguments), nullptr}, nullptr};
    if (Error* error = api_->create_future(&arguments)) return error;
    frame->future = future_ = arguments.future;
    return nullptr;
  }

  // XLA goes on, perhaps on this thread, and may free what the frame named.
  void Succeed() {
    FutureArguments arguments{{sizeof(arguments), nullptr}, future_};
    Drop(api_->set_available(&arguments));
  }

  void Fail(ErrorCode code, const char* message) {
    SetErrorArguments arguments{
        {sizeof(arguments), nullptr}, future_, MakeError(api_, code, message)};
    Drop(api_->set_error(&arguments));
  }

 private:
  // XLA has no more to say than that it was told already.
  void Drop(Error* error) {
    DestroyErrorArguments arguments{{sizeof(arguments), nullptr}, error};
    if (error != nullptr) api_->destroy_error(&arguments);
  }

  const Api* api_;
  Future* future_ = nullptr;
};

}  // namespace horoscale::xla
