// hs_residuals_*: the residuals of lossy encodings, for checkpoints.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "error.h"
#include "handles.h"
#include "horoscale/horoscale.h"
#include "runtime/runtime.h"

namespace horoscale {
namespace {

Result<std::shared_ptr<SetResiduals>> Find(hs_runtime* runtime, int32_t process_set) {
  HS_RETURN_IF_ERROR(CheckAlive(runtime));
  auto residuals = runtime->job->runtime().ResidualsOf(process_set);
  if (residuals == nullptr) {
    return Status::InvalidArgument("there is no process set " + std::to_string(process_set));
  }
  return residuals;
}

}  // namespace
}  // namespace horoscale

using horoscale::CheckGiven;
using horoscale::Status;
using horoscale::ToCode;

hs_code hs_residuals_save(hs_runtime* runtime, int32_t process_set, void** data, size_t* bytes) {
  if (Status status = CheckGiven(data, bytes); !status.ok()) return ToCode(status);
  *data = nullptr;
  *bytes = 0;
  const auto residuals = horoscale::Find(runtime, process_set);
  if (!residuals.ok()) return ToCode(residuals.status());
  const std::vector<std::byte> saved = (*residuals)->Save();
  *data = std::malloc(saved.size());
  if (*data == nullptr) return ToCode(Status::Internal("out of memory for the residuals"));
  std::memcpy(*data, saved.data(), saved.size());
  *bytes = saved.size();
  return HS_OK;
}

hs_code hs_residuals_load(hs_runtime* runtime, int32_t process_set, const void* data,
                          size_t bytes) {
  if (Status status = CheckGiven(data); !status.ok()) return ToCode(status);
  const auto residuals = horoscale::Find(runtime, process_set);
  if (!residuals.ok()) return ToCode(residuals.status());
  return ToCode((*residuals)->Load({static_cast<const std::byte*>(data), bytes}));
}

hs_code hs_residuals_scale(hs_runtime* runtime, int32_t process_set, double factor) {
  const auto residuals = horoscale::Find(runtime, process_set);
  if (!residuals.ok()) return ToCode(residuals.status());
  if (!std::isfinite(static_cast<float>(factor))) {  // the type by which residuals are multiplied
    return ToCode(Status::InvalidArgument("the factor for residuals is not a finite number"));
  }
  (*residuals)->Scale(factor);
  return HS_OK;
}
