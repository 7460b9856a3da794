// Timeline: what happened to each tensor, as Chrome trace events that Perfetto opens.
//
// One row per tensor and process set, with the phases NEGOTIATE (until every member was ready and
// the plan came), QUEUE (until its bucket started) and the operation itself, whose arguments tell
// the plan entry and the size of the bucket it was fused into. One more row tells when threads of
// the program were blocked in a wait for an operation.
#pragma once

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/member.h"
#include "platform/output_file.h"
#include "runtime/operation.h"

namespace horoscale {

class Timeline {
 public:
  explicit Timeline(int rank) : rank_(rank) {}
  ~Timeline();

  // Any thread. A running timeline is finished first.
  Status Start(const std::string& path, bool mark_cycles);
  Status Stop();
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // Any thread: it was blocked in a call that waits for the operation.
  void OnWaited(const Operation& operation, double began, double now);

  // By the engine's owner.
  void OnOperationDone(const Operation& operation, double now);
  void OnBucketDone(int process_set_id, const Action& action, double started_at, double now);
  void Flush();

 private:
  int RowOf(const std::string& title);
  void Span(int row, std::string_view name, double begin, double end, const std::string& arguments);
  void Write(const std::string& event);
  Status StopLocked();

  const int rank_;
  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  std::vector<char> buffer_;  // of the file, which is closed first
  OutputFile file_;
  std::unordered_map<std::string, int> rows_;
  bool first_event_ = true;
  bool mark_cycles_ = false;
};

}  // namespace horoscale
