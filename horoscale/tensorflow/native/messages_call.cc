// How a call gives its messages to the runtime, and what was received to TensorFlow.
#include "messages_call.h"

#include <cstring>
#include <utility>

#include "data_types.h"

namespace horoscale::tensorflow {

void MessagesCall::Start(Kernel* kernel, TF_OpKernelContext* context, std::function<void()> done) {
  auto* call = new MessagesCall(kernel, context, std::move(done));
  if (!call->Prepare()) return call->End();
  call->StartAll();
  call->Arrive();
}

MessagesCall::~MessagesCall() {
  for (hs_handle* handle : handles_) hs_handle_free(handle);
}

bool MessagesCall::Prepare() {
  const auto count = static_cast<size_t>(TF_NumInputs(context_));
  if (kernel_->sends.size() != count || kernel_->peers.size() != count ||
      kernel_->tags.size() != count) {
    return Check(Status(TF_INVALID_ARGUMENT, "each message needs a direction, a peer and a tag"));
  }
  tensors_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto index = static_cast<int>(i);
    if (!TakeInput(index)) return false;
    if (!(kernel_->sends[i] != 0 ? MakeZero(index) : ReuseOrMakeRoom(index))) return false;
  }
  return true;
}

bool MessagesCall::TakeInput(int index) {
  Status status;
  TF_Tensor* input = nullptr;
  TF_GetInput(context_, index, &input, status.get());
  if (status.ok()) tensors_[static_cast<size_t>(index)].reset(input);
  return Check(status);
}

// The result of a send.
bool MessagesCall::MakeZero(int index) {
  const TF_DataType type = TF_TensorType(tensors_[static_cast<size_t>(index)].get());
  Status status;
  const TensorPtr zero(
      TF_AllocateOutput(context_, index, type, nullptr, 0, SizeOf(type), status.get()));
  if (status.ok()) std::memset(TF_TensorData(zero.get()), 0, TF_TensorByteSize(zero.get()));
  return Check(status);
}

// Only the shape of the input counts: its memory is taken where nobody else will read it.
bool MessagesCall::ReuseOrMakeRoom(int index) {
  TensorPtr& tensor = tensors_[static_cast<size_t>(index)];
  std::vector<int64_t> shape;
  for (int d = 0; d < TF_NumDims(tensor.get()); ++d) shape.push_back(TF_Dim(tensor.get(), d));
  tensor.reset();  // or it would be in use
  int reused = -1;
  Status status;
  tensor.reset(TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, shape.data(),
                                               static_cast<int>(shape.size()), &reused,
                                               status.get()));
  return Check(status);
}

bool MessagesCall::StartAll() {
  handles_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const hs_message message = MessageOf(i);
    hs_handle* handle = nullptr;
    awaited_.fetch_add(1);
    const hs_code code = CurrentRuntime().Start(message, kernel_->sends[i] != 0, &handle);
    if (code != HS_OK) {  // those before it are waited for
      awaited_.fetch_sub(1);
      has_failed_ = true;
      FailNow(context_, code);
      return false;
    }
    handles_.push_back(handle);
  }
  return true;
}

hs_message MessagesCall::MessageOf(size_t index) const {
  TF_Tensor* const tensor = tensors_[index].get();
  const TF_DataType type = TF_TensorType(tensor);
  hs_message message{};
  message.struct_size = sizeof(message);
  message.process_set = static_cast<int32_t>(kernel_->process_set);
  message.peer = static_cast<int32_t>(kernel_->peers[index]);
  message.tag = kernel_->tags[index];
  message.channel = static_cast<int32_t>(kernel_->channel);
  message.dtype = DataTypeOf(type);
  message.count = static_cast<int64_t>(TF_TensorByteSize(tensor) / SizeOf(type));
  message.memory = TF_TensorData(tensor);
  message.callback = OnDone;
  message.user_data = const_cast<MessagesCall*>(this);
  return message;
}

void MessagesCall::OnDone(void* call, hs_code) { static_cast<MessagesCall*>(call)->Arrive(); }

void MessagesCall::Arrive() {
  if (awaited_.fetch_sub(1) == 1) Deliver();
}

void MessagesCall::Deliver() {
  for (hs_handle* handle : handles_) {
    if (has_failed_) break;  // the first failure is told
    if (const hs_code code = hs_wait(handle, 0); code != HS_OK) {
      has_failed_ = true;
      FailNow(context_, code);
    }
  }
  if (!has_failed_) DeliverSources();
  End();
}

void MessagesCall::DeliverSources() {
  const auto count = static_cast<int64_t>(handles_.size());
  Status status;
  const TensorPtr sources(TF_AllocateOutput(context_, static_cast<int>(count), TF_INT32, &count, 1,
                                            handles_.size() * sizeof(int32_t), status.get()));
  if (!Check(status)) return;
  auto* ranks = static_cast<int32_t*>(TF_TensorData(sources.get()));
  for (hs_handle* handle : handles_) *ranks++ = static_cast<int32_t>(hs_result(handle));
}

bool MessagesCall::Check(const Status& status) {
  if (!status.ok()) TF_OpKernelContext_Failure(context_, status.get());
  return status.ok();
}

void MessagesCall::End() {
  const std::function<void()> done = std::move(done_);
  delete this;
  done();
}

}  // namespace horoscale::tensorflow
