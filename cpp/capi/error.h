// The calling thread's last failure, as hs_error() shows it.
#pragma once

#include "base/status.h"
#include "horoscale/horoscale.h"

namespace horoscale {

// Remembers a failed status for hs_error() and returns its code; HS_OK for a status that is ok.
hs_code ToCode(const Status& status);

}  // namespace horoscale
