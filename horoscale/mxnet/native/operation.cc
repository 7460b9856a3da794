#include "operation.h"

#include <algorithm>
#include <cstddef>

#include "library.h"

namespace horoscale::mxnet {
namespace {

bool IsSharedBy(NDArrayHandle array, const std::vector<NDArrayHandle>& others) {
  return std::any_of(others.begin(), others.end(),
                     [array](NDArrayHandle other) { return ChunkOf(other) == ChunkOf(array); });
}

// An operation that named the same variable of the engine twice would wait for itself.
void AddUnlessShared(NDArrayHandle array, std::vector<NDArrayHandle>& list,
                     const std::vector<NDArrayHandle>& others) {
  if (!IsSharedBy(array, list) && !IsSharedBy(array, others)) list.push_back(array);
}

}  // namespace

Operation::Operation(const hs_request& request, uint64_t generation)
    : request_(request), generation_(generation) {
  if (request.name != nullptr) {
    name_ = request.name;
    request_.name = name_.c_str();
  }
  tensors_.assign(request.tensors, request.tensors + request.num_tensors);
  for (hs_tensor& tensor : tensors_) {
    tensor.shape = shapes_.emplace_back(tensor.shape, tensor.shape + tensor.num_dims).data();
  }
  splits_.assign(request.splits, request.splits + request.num_splits);
  request_.tensors = tensors_.data();
  request_.splits = request.splits == nullptr ? nullptr : splits_.data();
  request_.callback = OnDone;
  request_.user_data = this;
}

Operation::~Operation() {
  hs_handle_free(handle_);
  for (NDArrayHandle array : inputs_) functions.free_array(array);
  for (NDArrayHandle array : outputs_) {
    if (array != nullptr) functions.free_array(array);
  }
}

std::string Operation::Push(const hs_request& request, const NDArrayHandle* inputs,
                            const NDArrayHandle* outputs, uint64_t generation) {
  auto operation = std::make_unique<Operation>(request, generation);
  if (!operation->Share(inputs, outputs)) return functions.last_error();
  const auto outcome = functions.is_naive ? std::make_shared<std::string>() : nullptr;
  operation->outcome_ = outcome;
  // The engine owns it from here on, and may have deleted it when this call returns.
  if (operation.release()->PushToEngine() != 0) return functions.last_error();
  return outcome == nullptr ? "" : *outcome;
}

int Operation::PushToEngine() {
  std::vector<NDArrayHandle> written;
  std::vector<NDArrayHandle> read;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    // The layout of a convolution's result can't be changed once the operation runs.
    if (functions.reorder != nullptr) functions.reorder(inputs_[i]);
    AddUnlessShared(outputs_[i] == nullptr ? inputs_[i] : outputs_[i], written, {});
  }
  for (NDArrayHandle input : inputs_) AddUnlessShared(input, read, written);
  return functions.push_async(Run, this, Delete, &kHost, read.data(), static_cast<int>(read.size()),
                              written.data(), static_cast<int>(written.size()), &kPrioritized,
                              request_.priority, "horoscale", false);
}

// Shares the arrays' memory, which the caller may drop meanwhile.
bool Operation::Share(const NDArrayHandle* inputs, const NDArrayHandle* outputs) {
  inputs_.reserve(tensors_.size());
  outputs_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    NDArrayHandle copy = nullptr;
    if (functions.shallow_copy(inputs[i], &copy) != 0) return false;
    inputs_.push_back(copy);
    copy = nullptr;
    if (outputs[i] != inputs[i] && functions.shallow_copy(outputs[i], &copy) != 0) return false;
    outputs_.push_back(copy);
  }
  return true;
}

void Operation::Run(void*, void* on_complete, void* operation) {
  auto* self = static_cast<Operation*>(operation);
  self->on_complete_ = *static_cast<const OnComplete*>(on_complete);
  if (!self->Place()) return self->Complete(functions.last_error());
  self->Enqueue();
}

void Operation::Delete(void* operation) { delete static_cast<Operation*>(operation); }

bool Operation::Place() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    void* data = nullptr;
    if (functions.get_data(inputs_[i], &data) != 0) return false;
    tensors_[i].in = data;
    if (outputs_[i] != nullptr && functions.get_data(outputs_[i], &data) != 0) return false;
    // Without elements there is no memory, and nothing is written; null would ask for some.
    tensors_[i].out = data == nullptr ? this : data;
  }
  return true;
}

void Operation::Enqueue() {
  hs_handle* handle = nullptr;
  const std::string error = CurrentRuntime().Enqueue(request_, generation_, &handle);
  if (!error.empty()) return Complete(error);
  handle_ = handle;
  Arrive();
}

void Operation::OnDone(void* operation, hs_code) { static_cast<Operation*>(operation)->Arrive(); }

void Operation::Arrive() {
  if (arrived_.fetch_add(1) == 1) Deliver();
}

void Operation::Deliver() {
  const hs_code code = hs_wait(handle_, 0);  // done: it tells how it went
  Complete(code == HS_OK ? "" : LastError(code));
}

void Operation::Complete(const std::string& error) {
  const OnComplete done = on_complete_;
  if (outcome_ != nullptr) *outcome_ = error;
  if (error.empty()) return done.function(done.engine, done.parameter, nullptr);
  alignas(void*) std::byte memory[2 * sizeof(void*)];  // the table of its class, and the message
  functions.make_error(memory, error.c_str());
  done.function(done.engine, done.parameter, memory);
  functions.destroy_error(memory);
}

}  // namespace horoscale::mxnet
