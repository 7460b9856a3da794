#include "base/status.h"

#include <cstring>
#include <system_error>

namespace horoscale {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotInitialized:
      return "not initialized";
    case StatusCode::kMismatch:
      return "mismatch";
    case StatusCode::kDuplicateName:
      return "duplicate name";
    case StatusCode::kRankFailed:
      return "rank failed";
    case StatusCode::kShutdown:
      return "shut down";
    case StatusCode::kTimeout:
      return "timeout";
    case StatusCode::kUnauthenticated:
      return "unauthenticated";
    case StatusCode::kSystem:
      return "system error";
    case StatusCode::kProtocol:
      return "protocol error";
    case StatusCode::kUnimplemented:
      return "unimplemented";
    case StatusCode::kInternal:
      return "internal error";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kJoined:
      return "joined";
  }
  return "unknown";
}

Status Status::System(std::string_view what, int errnum) {
  FailureDetail detail;
  detail.errnum = errnum;
  return {StatusCode::kSystem, std::string(what) + ": " + std::generic_category().message(errnum),
          std::move(detail)};
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

const FailureDetail& Status::detail() const {
  static const FailureDetail kNone;
  return rep_ ? rep_->detail : kNone;
}

}  // namespace horoscale
