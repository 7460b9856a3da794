// Status and Result: how every fallible function of the core reports failure.
//
// A Status is a cheap value: success is a null pointer. It is thread-safe to read and to copy. The
// core never throws; exceptions exist only at the Python border.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace horoscale {

// The values are part of the C ABI (hs_code in horoscale.h) and never change their meaning.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,  // invalid, as detected by this rank alone
  kNotInitialized = 2,   // before init, or in a forked child
  kMismatch = 3,         // the members of a set made contradictory requests for one tensor
  kDuplicateName = 4,    // two pending operations with the same name on one set
  kRankFailed = 5,       // a rank failed or left, or the set is unusable after an abandoned
                         // operation
  kShutdown = 6,         // this process shut the runtime down
  kTimeout = 7,          // a deadline passed
  kUnauthenticated = 8,  // wrong or missing secret
  kSystem = 9,           // the operating system refused; the message contains the call and errno
  kProtocol = 10,        // an invalid frame: version, bounds, order
  kUnimplemented = 11,   // known, but not in this build
  kInternal = 12,        // a bug in horoscale
  kUnsupported = 13,     // the operation is not defined for this operator or element type
  kJoined = 14,          // the operation needs a rank that has called join
};
inline constexpr StatusCode kLastStatusCode = StatusCode::kJoined;

// The name of a code in logs, such as "mismatch".
std::string_view StatusCodeName(StatusCode code);

// The ranks, process set and tensor that a failure concerns, for programs that handle errors.
struct FailureDetail {
  std::vector<int> ranks;   // global ranks that caused the failure
  int process_set_id = -1;  // -1: none
  std::string tensor;       // empty: none
  int errnum = 0;           // kSystem: the errno; 0: unknown
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, FailureDetail detail = {})
      : rep_(std::make_shared<const Rep>(Rep{code, std::move(message), std::move(detail)})) {
    assert(code != StatusCode::kOk);
  }

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  static Status Timeout(std::string m) { return {StatusCode::kTimeout, std::move(m)}; }
  static Status Unauthenticated(std::string m) {
    return {StatusCode::kUnauthenticated, std::move(m)};
  }
  static Status Protocol(std::string m) { return {StatusCode::kProtocol, std::move(m)}; }
  static Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
  // "what: strerror(errnum)".
  static Status System(std::string_view what, int errnum);

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  const std::string& message() const;
  const FailureDetail& detail() const;

 private:
  struct Rep {
    StatusCode code;
    std::string message;
    FailureDetail detail;
  };
  std::shared_ptr<const Rep> rep_;
};

// A value, or the Status that describes why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T TakeValue() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

// Returns from the enclosing function when the expression is a failed Status.
#define HS_RETURN_IF_ERROR(expr)                                                      \
  do {                                                                                \
    if (::horoscale::Status hs_status_ = (expr); !hs_status_.ok()) return hs_status_; \
  } while (0)

}  // namespace horoscale
