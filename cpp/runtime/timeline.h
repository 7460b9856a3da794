// Timeline: writes the history of each tensor as Chrome trace events, which Perfetto can open.
//
// There is one row per tensor and process set, with the phases NEGOTIATE (until every member was
// ready and the plan entry arrived), QUEUE (until its bucket started) and the operation itself,
// whose arguments contain the plan entry and the size of its bucket. Another row shows when threads
// of the program were blocked in waits for operations.
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

  // Any thread. Finishes a running timeline first.
  Status Start(const std::string& path, bool mark_cycles);
  Status Stop();
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // Records that the calling thread was blocked in a wait for the operation. Any thread.
  void OnWaited(const Operation& operation, double began, double now);

  // Called by the engine's owner.
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
  std::vector<char> buffer_;  // buffer of the file, which is closed before it
  OutputFile file_;
  std::unordered_map<std::string, int> rows_;
  bool first_event_ = true;
  bool mark_cycles_ = false;
};

}  // namespace horoscale
