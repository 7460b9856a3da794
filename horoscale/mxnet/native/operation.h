// Operation: one collective, from the push into MXNet's engine to the engine's completion.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "horoscale/horoscale.h"
#include "mxnet_api.h"

namespace horoscale::mxnet {

// The engine's: it calls Run() when the arrays are ready, and Delete() when all is over.
class Operation {
 public:
  // Copies the request. `generation` is the runtime's, see library.h.
  Operation(const hs_request& request, uint64_t generation);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Hands an operation to the engine, on as many inputs and outputs as the request has tensors; an
  // output may be the input. Returns what went wrong so far, "" if nothing did.
  static std::string Push(const hs_request& request, const NDArrayHandle* inputs,
                          const NDArrayHandle* outputs, uint64_t generation);

 private:
  static void Run(void* context, void* on_complete, void* operation);
  static void Delete(void* operation);
  static void OnDone(void* operation, hs_code code);
  int PushToEngine();
  bool Share(const NDArrayHandle* inputs, const NDArrayHandle* outputs);
  bool Place();
  void Enqueue();
  // The collective is done and its handle known: whichever of the two comes last calls Deliver().
  void Arrive();
  void Deliver();
  // Tells the engine how it went ("": well); the operation may be deleted by then.
  void Complete(const std::string& error);

  hs_request request_;
  std::string name_;
  std::vector<hs_tensor> tensors_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> splits_;
  std::vector<NDArrayHandle> inputs_;
  std::vector<NDArrayHandle> outputs_;  // null: the input
  uint64_t generation_;
  std::shared_ptr<std::string> outcome_;  // null unless the engine is naive
  OnComplete on_complete_ = {};
  hs_handle* handle_ = nullptr;
  std::atomic<int> arrived_ = 0;
};

}  // namespace horoscale::mxnet
