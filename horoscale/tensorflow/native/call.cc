// How a call takes its inputs to the runtime and the result back.
#include "call.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "data_types.h"

namespace horoscale::tensorflow {
namespace {

hs_kind KindOf(OpType type) {
  switch (type) {
    case OpType::kAllreduce:
      return HS_ALLREDUCE;
    case OpType::kAllgather:
      return HS_ALLGATHER;
    case OpType::kBroadcast:
      return HS_BROADCAST;
    case OpType::kAlltoall:
      return HS_ALLTOALL;
    case OpType::kReducescatter:
      return HS_REDUCESCATTER;
    case OpType::kReduce:
      return HS_REDUCE;
    case OpType::kGather:
      return HS_GATHER;
    case OpType::kScatter:
      return HS_SCATTER;
    default:
      return HS_JOIN;
  }
}

// Whether the runtime makes the outputs, whose sizes it alone knows.
bool AllocatesResults(OpType type) {
  return type == OpType::kAllgather || type == OpType::kAlltoall || type == OpType::kGather ||
         type == OpType::kScatter;
}

void FreeOutput(void* data, size_t, void*) { hs_free(data); }

}  // namespace

void Call::Start(Kernel* kernel, TF_OpKernelContext* context, std::function<void()> done) {
  auto* call = new Call(kernel, context, std::move(done));
  if (!kernel->name.empty()) {
    const std::lock_guard lock(kernel->mutex);
    if (kernel->busy) {
      kernel->waiting.push_back(call);
      return;
    }
    kernel->busy = true;
  }
  call->Run();
}

void Call::Run() {
  if (!Prepare()) return End();
  const hs_request request = Request();
  // What is freed with the call may be freed by OnDone() as soon as the operation is enqueued.
  hs_handle* handle = nullptr;
  const hs_code code = CurrentRuntime().Enqueue(request, &handle);
  if (code != HS_OK) {
    FailWithLastError(code);
    return End();
  }
  handle_ = handle;
  Arrive();
}

bool Call::Prepare() {
  const hs_code code =
      CurrentRuntime().MembershipOf(static_cast<int32_t>(kernel_->process_set), &set_);
  if (code != HS_OK) return FailWithLastError(code);
  if (kernel_->type == OpType::kJoin) return true;
  if (!TakeInputs()) return false;
  const bool has_splits = kernel_->type == OpType::kAlltoall || kernel_->type == OpType::kScatter;
  if (has_splits && !TakeSplits()) return false;
  tensors_.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    tensors_[i] = {TF_TensorData(inputs_[i].get()),
                   nullptr,
                   DataTypeOf(TF_TensorType(inputs_[i].get())),
                   static_cast<int32_t>(shapes_[i].size()),
                   shapes_[i].data(),
                   0};
  }
  return AllocatesResults(kernel_->type) || MakeRoom();
}

bool Call::TakeInputs() {
  const int count = TF_NumInputs(context_);
  inputs_.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (!TakeInput(i)) return false;
    const TF_Tensor* input = inputs_[static_cast<size_t>(i)].get();
    std::vector<int64_t>& shape = shapes_.emplace_back();
    for (int d = 0; d < TF_NumDims(input); ++d) shape.push_back(TF_Dim(input, d));
  }
  return true;
}

bool Call::TakeInput(int index) {
  Status status;
  TF_Tensor* input = nullptr;
  TF_GetInput(context_, index, &input, status.get());
  if (!status.ok()) return Fail(TF_GetCode(status.get()), TF_Message(status.get()));
  inputs_[static_cast<size_t>(index)].reset(input);
  return true;
}

// The second input of alltoall and scatter; rows that it doesn't send are left out.
bool Call::TakeSplits() {
  const TensorPtr splits = std::move(inputs_.back());
  inputs_.pop_back();
  const std::vector<int64_t> shape = std::move(shapes_.back());
  shapes_.pop_back();
  if (shape.size() != 1) return Fail(TF_INVALID_ARGUMENT, "splits has to be a vector");
  if (shape[0] == 0) return true;
  const auto* values = static_cast<const int32_t*>(TF_TensorData(splits.get()));
  splits_.assign(values, values + shape[0]);
  if (shape[0] != set_.size) {
    return Fail(TF_INVALID_ARGUMENT, "splits has " + std::to_string(shape[0]) +
                                         " elements for a process set of " +
                                         std::to_string(set_.size) + " ranks");
  }
  if (std::any_of(splits_.begin(), splits_.end(), [](int64_t split) { return split < 0; })) {
    return Fail(TF_INVALID_ARGUMENT, "splits has a negative element");
  }
  const int64_t sent = std::accumulate(splits_.begin(), splits_.end(), int64_t{0});
  if (!shapes_[0].empty() && sent > shapes_[0][0]) {
    return Fail(TF_INVALID_ARGUMENT, "splits needs " + std::to_string(sent) +
                                         " rows, but the tensor has " +
                                         std::to_string(shapes_[0][0]));
  }
  if (!shapes_[0].empty()) shapes_[0][0] = sent;
  return true;
}

bool Call::MakeRoom() {
  const bool is_scattered = kernel_->type == OpType::kReducescatter;
  const bool is_elsewhere = kernel_->type == OpType::kReduce && !IsRoot();
  if (is_scattered) splits_ = kernel_->splits;
  for (int i = 0; i < static_cast<int>(inputs_.size()); ++i) {
    const bool has_room = is_scattered   ? MakeScatteredRoom(i)
                          : is_elsewhere ? MakeNoRoom(i)
                                         : ReuseOrMakeRoom(i);
    if (!has_room) return false;
    if (is_elsewhere) continue;
    tensors_[static_cast<size_t>(i)].out = TF_TensorData(outputs_.back().get());
  }
  return true;
}

bool Call::MakeScatteredRoom(int index) {
  const auto i = static_cast<size_t>(index);
  std::vector<int64_t> shape = shapes_[i];
  if (shape.empty()) {
    return Fail(TF_INVALID_ARGUMENT,
                "reducescatter needs a tensor with at least one dimension, not a 0-d one");
  }
  const int64_t rows = shape[0];
  if (splits_.empty()) {
    shape[0] = rows / set_.size + (set_.position < rows % set_.size ? 1 : 0);
  } else if (splits_.size() == static_cast<size_t>(set_.size)) {
    shape[0] = splits_[static_cast<size_t>(set_.position)];
  }  // else the runtime refuses it
  const size_t bytes = rows == 0 ? 0
                                 : TF_TensorByteSize(inputs_[i].get()) / static_cast<size_t>(rows) *
                                       static_cast<size_t>(shape[0]);
  Status status;
  outputs_.emplace_back(TF_AllocateOutput(context_, index, TF_TensorType(inputs_[i].get()),
                                          shape.data(), static_cast<int>(shape.size()), bytes,
                                          status.get()));
  return status.ok() || Fail(TF_GetCode(status.get()), TF_Message(status.get()));
}

// For who is not the root of a reduction: an output without elements.
bool Call::MakeNoRoom(int index) {
  const int64_t shape[] = {0};
  Status status;
  outputs_.emplace_back(TF_AllocateOutput(context_, index,
                                          TF_TensorType(inputs_[static_cast<size_t>(index)].get()),
                                          shape, 1, 0, status.get()));
  return status.ok() || Fail(TF_GetCode(status.get()), TF_Message(status.get()));
}

// An input that nobody else will read becomes the output: its memory is warm, and not taken twice.
bool Call::ReuseOrMakeRoom(int index) {
  const auto i = static_cast<size_t>(index);
  inputs_[i].reset();  // or it would be in use
  int reused = -1;
  Status status;
  outputs_.emplace_back(
      TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, shapes_[i].data(),
                                      static_cast<int>(shapes_[i].size()), &reused, status.get()));
  if (!status.ok()) return Fail(TF_GetCode(status.get()), TF_Message(status.get()));
  if (reused == index) return true;
  return TakeInput(index);
}

hs_request Call::Request() const {
  hs_request request{};
  request.struct_size = sizeof(request);
  request.kind = KindOf(kernel_->type);
  request.name = kernel_->name.empty() ? nullptr : kernel_->name.c_str();
  request.process_set = static_cast<int32_t>(kernel_->process_set);
  request.tensors = tensors_.data();
  request.num_tensors = static_cast<int32_t>(tensors_.size());
  request.reduce_op = static_cast<int32_t>(kernel_->reduce_op);
  request.prescale = kernel_->prescale;
  request.postscale = kernel_->postscale;
  request.encoding = static_cast<int32_t>(kernel_->encoding);
  request.root = static_cast<int32_t>(kernel_->root);
  request.splits = splits_.empty() ? nullptr : splits_.data();
  request.num_splits = static_cast<int32_t>(splits_.size());
  request.priority = static_cast<int32_t>(kernel_->priority);
  request.callback = OnDone;
  request.user_data = const_cast<Call*>(this);
  return request;
}

void Call::OnDone(void* call, hs_code) { static_cast<Call*>(call)->Arrive(); }

void Call::Arrive() {
  if (arrived_.fetch_add(1) == 1) Deliver();
}

void Call::Deliver() {
  const hs_code code = hs_wait(handle_, 0);  // done: it tells how it went
  if (code != HS_OK) {
    FailWithLastError(code);
  } else if (kernel_->type == OpType::kJoin) {
    Status status;
    const TensorPtr output(
        TF_AllocateOutput(context_, 0, TF_INT32, nullptr, 0, sizeof(int32_t), status.get()));
    if (status.ok()) {
      *static_cast<int32_t*>(TF_TensorData(output.get())) =
          static_cast<int32_t>(hs_result(handle_));
    } else {
      TF_OpKernelContext_Failure(context_, status.get());
    }
  } else if (outputs_.empty()) {
    DeliverAllocated();
  }
  End();
}

bool Call::DeliverAllocated() {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    std::vector<int64_t>& rows = rows_.emplace_back(static_cast<size_t>(set_.size));
    const hs_code code = hs_output_rows(handle_, static_cast<int32_t>(i), rows.data(), set_.size);
    if (code != HS_OK) return FailWithLastError(code);
    if (!AdoptOutput(static_cast<int>(i))) return false;
  }
  return kernel_->type == OpType::kScatter || DeliverRows();
}

bool Call::AdoptOutput(int index) {
  const auto i = static_cast<size_t>(index);
  void* data = nullptr;
  size_t bytes = 0;
  if (hs_code code = hs_output(handle_, index, &data, &bytes); code != HS_OK) {
    return FailWithLastError(code);
  }
  std::vector<int64_t> shape = shapes_[i];
  shape[0] = std::accumulate(rows_[i].begin(), rows_[i].end(), int64_t{0});
  const TF_DataType type = TF_TensorType(inputs_[i].get());
  const auto dims = static_cast<int>(shape.size());
  Status status;
  if (bytes == 0) {
    const TensorPtr empty(
        TF_AllocateOutput(context_, index, type, shape.data(), dims, 0, status.get()));
  } else {
    const TensorPtr adopted(
        TF_NewTensor(type, shape.data(), dims, data, bytes, FreeOutput, nullptr));
    TF_SetOutput(context_, index, adopted.get(), status.get());
  }
  return status.ok() || Fail(TF_GetCode(status.get()), TF_Message(status.get()));
}

// The last output: int64 by tensor and member (allgather), int32 by member (alltoall, gather).
bool Call::DeliverRows() {
  const bool is_gather = kernel_->type == OpType::kAllgather;
  const auto index = static_cast<int>(inputs_.size());
  const int64_t shape[] = {index, set_.size};
  const size_t count =
      is_gather ? rows_.size() * static_cast<size_t>(set_.size) : static_cast<size_t>(set_.size);
  const size_t bytes = count * (is_gather ? sizeof(int64_t) : sizeof(int32_t));
  Status status;
  const TensorPtr output(TF_AllocateOutput(context_, index, is_gather ? TF_INT64 : TF_INT32,
                                           is_gather ? shape : shape + 1, is_gather ? 2 : 1, bytes,
                                           status.get()));
  if (!status.ok()) return Fail(TF_GetCode(status.get()), TF_Message(status.get()));
  void* data = TF_TensorData(output.get());
  if (!is_gather) {
    std::copy(rows_[0].begin(), rows_[0].end(), static_cast<int32_t*>(data));
    return true;
  }
  auto* target = static_cast<int64_t*>(data);
  for (const auto& rows : rows_) target = std::copy(rows.begin(), rows.end(), target);
  return true;
}

bool Call::Fail(TF_Code code, const std::string& message) {
  const Status status(code, message);
  TF_OpKernelContext_Failure(context_, status.get());
  return false;
}

bool Call::FailWithLastError(hs_code code) {
  FailNow(context_, code);
  return false;
}

// After done_() TensorFlow may delete the kernel, but not while another call of it waits.
void Call::End() {
  Call* next = nullptr;
  if (!kernel_->name.empty()) {
    const std::lock_guard lock(kernel_->mutex);
    if (kernel_->waiting.empty()) {
      kernel_->busy = false;
    } else {
      next = kernel_->waiting.front();
      kernel_->waiting.pop_front();
    }
  }
  const std::function<void()> done = std::move(done_);
  delete this;
  done();
  if (next != nullptr) next->Run();
}

}  // namespace horoscale::tensorflow
