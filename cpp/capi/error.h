// The calling thread's last failure, which hs_error() returns.
#pragma once

#include "base/status.h"
#include "horoscale/horoscale.h"

namespace horoscale {

// Records a failed status for hs_error() and returns its code; returns HS_OK for an OK status.
hs_code ToCode(const Status& status);

// kInvalidArgument if one of the required arguments is null.
template <typename... T>
Status CheckGiven(const T*... arguments) {
  if ((... && (arguments != nullptr))) return Status::Ok();
  return Status::InvalidArgument("a required argument is null");
}

// Checks the size at the start of a structure that the caller has filled in.
Status CheckSize(const char* name, size_t given, size_t known);

}  // namespace horoscale
