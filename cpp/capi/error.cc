#include "error.h"

#include <vector>

namespace horoscale {
namespace {

struct LastError {
  Status status;
  std::vector<int32_t> ranks;
  hs_error_info info = {};
};
thread_local LastError last_error;

}  // namespace

hs_code ToCode(const Status& status) {
  if (!status.ok()) last_error.status = status;
  return static_cast<hs_code>(status.code());
}

Status CheckSize(const char* name, size_t given, size_t known) {
  if (given == known) return Status::Ok();
  return Status::InvalidArgument(
      std::string(name) + ".struct_size is " + std::to_string(given) +
      ", but this library expects " + std::to_string(known) +
      ": set it to sizeof, and compile with the header of this library's version");
}

}  // namespace horoscale

const hs_error_info* hs_error(void) {
  using horoscale::last_error;
  const horoscale::Status& status = last_error.status;
  const horoscale::FailureDetail& detail = status.detail();
  last_error.ranks.assign(detail.ranks.begin(), detail.ranks.end());
  last_error.info = {static_cast<hs_code>(status.code()),
                     status.message().c_str(),
                     last_error.ranks.data(),
                     static_cast<int32_t>(last_error.ranks.size()),
                     detail.process_set_id,
                     detail.tensor.c_str()};
  return &last_error.info;
}
