// The runtime that hvd.init() started, and MXNet's functions.
#pragma once

#include <shared_mutex>
#include <string>

#include "horoscale/horoscale.h"
#include "mxnet_api.h"

namespace horoscale::mxnet {

extern Functions functions;

// Keeps the runtime from being freed while it is in use.
class CurrentRuntime {
 public:
  CurrentRuntime();

  // Grows with each job of this process.
  uint64_t generation() const;
  // Enqueues an operation that was pushed during the job of this generation. Returns what went
  // wrong, "" if nothing did.
  std::string Enqueue(const hs_request& request, uint64_t generation, hs_handle** out) const;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

// Describes this thread's last failed call of horoscale: the name of a class, and a sentence.
std::string LastError(hs_code code);

}  // namespace horoscale::mxnet

extern "C" {

// Called once, when the binding is imported.
__attribute__((visibility("default"))) void horoscale_mxnet_use(
    const horoscale::mxnet::Functions* functions);

// Called when a job begins, and with null when it has ended.
__attribute__((visibility("default"))) void horoscale_mxnet_set_runtime(hs_runtime* runtime);

// Pushes a collective on arrays, whose memory the request lacks. Returns null, or what went wrong,
// which is valid until the thread's next push.
__attribute__((visibility("default"))) const char* horoscale_mxnet_push(
    const hs_request* request, const horoscale::mxnet::NDArrayHandle* inputs,
    const horoscale::mxnet::NDArrayHandle* outputs);
}
