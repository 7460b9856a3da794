// The runtime that hvd.init() started, as the kernels see it.
#pragma once

#include <shared_mutex>

#include "c_api.h"
#include "horoscale/horoscale.h"

namespace horoscale::tensorflow {

// This process' place in a process set.
struct Membership {
  int32_t size = 0;
  int32_t position = -1;  // -1: outside
  int32_t rank = -1;      // of this process, in the job
};

// Keeps the runtime from being freed while it is in use. Null where there is none.
class CurrentRuntime {
 public:
  CurrentRuntime();

  hs_code Topology(hs_topology* out) const;
  hs_code MembershipOf(int32_t process_set, Membership* out) const;
  hs_code Enqueue(const hs_request& request, hs_handle** out) const;
  hs_code Start(const hs_message& message, bool is_send, hs_handle** out) const;

 private:
  std::shared_lock<std::shared_mutex> lock_;
  hs_runtime* runtime_;
};

// Fails a kernel with the last error of this thread's calls of horoscale, which gave `code`.
void FailNow(TF_OpKernelContext* context, hs_code code);

}  // namespace horoscale::tensorflow

// Called by Python when a job begins, and with null before it ends.
extern "C" __attribute__((visibility("default"))) void horoscale_tensorflow_set_runtime(
    hs_runtime* runtime);
