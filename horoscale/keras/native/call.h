// Call: one run of the handler, from XLA's thread through the runtime to its completion.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "completion.h"
#include "ffi.h"
#include "horoscale/horoscale.h"

namespace horoscale::xla {

// Tensors that are reduced all or none.
struct Group {
  size_t tensors = 0;
  int64_t encoding = 0;
  std::string name;  // empty: matched by the order of the calls
};

// What the compiled program gives beside the tensors.
struct Settings {
  int64_t process_set = 0;
  int64_t reduce_op = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<Group> groups;  // together, they have all tensors
};

// Reduces all tensors of a frame, in groups that are all under way at once. Deletes itself when it
// is over.
class Call {
 public:
  // Enqueues the operations and returns null, or the error that the handler has to return.
  static Error* Start(CallFrame* frame, Settings settings);

 private:
  Call(const Api* api, Settings settings) : settings_(std::move(settings)), completion_(api) {}
  ~Call();

  void TakeTensors(const CallFrame& frame);
  void EnqueueAll();
  bool Enqueue(const hs_request& request);
  hs_request Request(size_t first, const Group& group) const;
  static void OnDone(void* call, hs_code code);
  // Operations are done, or refused, or all enqueued: whatever comes last ends the call.
  void Arrive(size_t count);
  void End();

  Settings settings_;
  Completion completion_;
  std::vector<hs_tensor> tensors_;
  std::vector<hs_handle*> handles_;
  hs_code failure_ = HS_OK;  // the first one
  std::string reason_;
  std::atomic<size_t> expected_ = 0;
};

}  // namespace horoscale::xla

// Called by Python when a job begins, and with null before it ends.
extern "C" __attribute__((visibility("default"))) void horoscale_xla_set_runtime(
    hs_runtime* runtime);
