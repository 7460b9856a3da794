// Call: one run of a kernel, from TensorFlow's thread through the runtime to its completion.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "kernel.h"
#include "raii.h"
#include "runtime.h"

namespace horoscale::tensorflow {

// Deletes itself when it is over.
class Call {
 public:
  // Enqueues the operation, or has it wait for the last run of the same node.
  static void Start(Kernel* kernel, TF_OpKernelContext* context, std::function<void()> done);

 private:
  Call(Kernel* kernel, TF_OpKernelContext* context, std::function<void()> done)
      : kernel_(kernel), context_(context), done_(std::move(done)) {}
  ~Call() { hs_handle_free(handle_); }

  void Run();
  bool Prepare();
  bool TakeInputs();
  bool TakeInput(int index);
  bool TakeSplits();
  bool MakeRoom();
  bool MakeScatteredRoom(int index);
  bool MakeNoRoom(int index);
  bool ReuseOrMakeRoom(int index);
  hs_request Request() const;
  static void OnDone(void* call, hs_code code);
  // The operation is done and its handle known: whichever of the two comes last calls Deliver().
  void Arrive();
  void Deliver();
  bool DeliverAllocated();
  bool AdoptOutput(int index);
  bool DeliverRows();
  bool IsRoot() const { return set_.rank == kernel_->root; }
  bool Fail(TF_Code code, const std::string& message);
  bool FailWithLastError(hs_code code);
  void End();

  Kernel* kernel_;
  TF_OpKernelContext* context_;
  std::function<void()> done_;
  std::vector<TensorPtr> inputs_;
  std::vector<TensorPtr> outputs_;
  std::vector<std::vector<int64_t>> shapes_;  // of the inputs
  std::vector<int64_t> splits_;
  std::vector<hs_tensor> tensors_;
  std::vector<std::vector<int64_t>> rows_;  // of each output that the runtime allocated, by member
  Membership set_;
  hs_handle* handle_ = nullptr;
  std::atomic<int> arrived_ = 0;
};

}  // namespace horoscale::tensorflow
