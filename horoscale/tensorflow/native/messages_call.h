// MessagesCall: one run of a kernel that sends and receives, until the last message is done.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "kernel.h"
#include "raii.h"
#include "runtime.h"

namespace horoscale::tensorflow {

// Deletes itself when it is over. All messages are under way at once.
class MessagesCall {
 public:
  static void Start(Kernel* kernel, TF_OpKernelContext* context, std::function<void()> done);

 private:
  MessagesCall(Kernel* kernel, TF_OpKernelContext* context, std::function<void()> done)
      : kernel_(kernel), context_(context), done_(std::move(done)) {}
  ~MessagesCall();

  bool Prepare();
  bool TakeInput(int index);
  bool MakeZero(int index);
  bool ReuseOrMakeRoom(int index);
  bool StartAll();
  hs_message MessageOf(size_t index) const;
  static void OnDone(void* call, hs_code code);
  // A message is done, or all were started: whoever comes last calls Deliver().
  void Arrive();
  void Deliver();
  void DeliverSources();
  bool Check(const Status& status);
  void End();

  Kernel* kernel_;
  TF_OpKernelContext* context_;
  std::function<void()> done_;
  std::vector<TensorPtr> tensors_;  // that are sent, or received into
  std::vector<hs_handle*> handles_;
  std::atomic<size_t> awaited_ = 1;
  bool has_failed_ = false;
};

}  // namespace horoscale::tensorflow
