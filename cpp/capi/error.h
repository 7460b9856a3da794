// The calling thread's last failure, as hs_error() shows it.
#pragma once

#include "base/status.h"
#include "horoscale/horoscale.h"

namespace horoscale {

// Remembers a failed status for hs_error() and returns its code; HS_OK for a status that is ok.
hs_code ToCode(const Status& status);

// kInvalidArgument if one of the arguments that a call can't do without is null.
template <typename... T>
Status CheckGiven(const T*... arguments) {
  if ((... && (arguments != nullptr))) return Status::Ok();
  return Status::InvalidArgument("a required argument is null");
}

// A structure that the caller filled, by the size that it begins with.
Status CheckSize(const char* name, size_t given, size_t known);

}  // namespace horoscale
