// hs_enqueue, hs_wait, and the functions for handles.
#include "operations.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/process_set_ids.h"
#include "collectives/adasum.h"
#include "collectives/fold.h"

namespace horoscale {
namespace {

// Registrations of process sets are matched by this name, so that contradictory calls are reported
// as mismatches.
constexpr char kRegistrationName[] = "horoscale.process_set_registration";

// Before the value is narrowed: 256 is not 0.
Status CheckEnumerator(const char* what, int32_t value, int32_t count) {
  if (value >= 0 && value < count) return Status::Ok();
  return Status::InvalidArgument("unknown " + std::string(what) + " " + std::to_string(value));
}

Status CheckRequest(const hs_request& given) {
  HS_RETURN_IF_ERROR(CheckSize("hs_request", given.struct_size, sizeof(hs_request)));
  HS_RETURN_IF_ERROR(CheckEnumerator("kind of operation", given.kind, kNumOpKinds));
  if (Reduces(static_cast<OpKind>(given.kind))) {
    HS_RETURN_IF_ERROR(CheckEnumerator("reduction operator", given.reduce_op, kNumReduceOps));
  }
  const auto encoding = Encoding::FromCode(given.encoding);
  if (!encoding) {
    return Status::InvalidArgument("unknown encoding " + std::to_string(given.encoding));
  }
  if (encoding->IsLossy() && given.kind != HS_ALLREDUCE && given.kind != HS_REDUCESCATTER) {
    return Status::InvalidArgument(Name(*encoding) +
                                   " is an encoding for allreduce and reducescatter only");
  }
  if (given.num_tensors < 0 || (given.num_tensors > 0 && given.tensors == nullptr)) {
    return Status::InvalidArgument("the request has no tensors");
  }
  if (given.num_ranks < 0 || (given.num_ranks > 0 && given.ranks == nullptr)) {
    return Status::InvalidArgument("the request has no ranks");
  }
  constexpr int32_t kSetFlags =
      HS_SET_DISTINCT | HS_SET_ORDERED | HS_SET_BY_MEMBERS | HS_SET_ABANDONED;
  if ((given.set_flags & ~kSetFlags) != 0) {
    return Status::InvalidArgument("unknown flags of a process set: " +
                                   std::to_string(given.set_flags));
  }
  if (given.num_splits < 0) return Status::InvalidArgument("the request has no splits");
  return Status::Ok();
}

Status CopyTensor(const hs_tensor& given, Operation* operation) {
  HS_RETURN_IF_ERROR(CheckEnumerator("element type", given.dtype, kNumDataTypes));
  if (given.num_dims < 0 || (given.num_dims > 0 && given.shape == nullptr)) {
    return Status::InvalidArgument("a tensor has no shape");
  }
  TensorSpec spec;
  spec.dtype = static_cast<DataType>(given.dtype);
  spec.shape.assign(given.shape, given.shape + given.num_dims);
  TensorMemory memory;
  memory.in = static_cast<const std::byte*>(given.in);
  memory.out = static_cast<std::byte*>(given.out);
  memory.row_bytes = static_cast<int64_t>(SizeOf(spec.dtype));
  for (size_t d = 1; d < spec.shape.size(); ++d) {
    if (__builtin_mul_overflow(memory.row_bytes, spec.shape[d], &memory.row_bytes)) {
      return Status::InvalidArgument("a tensor is too large");
    }
  }
  if (!spec.shape.empty()) memory.rows = spec.shape[0];
  memory.out_rows = given.out_rows;
  Signature& signature = operation->request.signature;
  if (HasFreeFirstDimension(signature.kind) && !spec.shape.empty()) spec.shape[0] = kFreeDimension;
  signature.tensors.push_back(std::move(spec));
  operation->tensors.push_back(memory);
  return Status::Ok();
}

// Rows per member: as given, or evenly as defined for the kind.
Status CopySplits(const hs_request& given, size_t members, Operation* operation) {
  Signature& signature = operation->request.signature;
  if (given.splits != nullptr) {
    operation->splits.assign(given.splits, given.splits + given.num_splits);
    if (signature.kind == OpKind::kReducescatter) signature.splits = operation->splits;
    return Status::Ok();
  }
  if (signature.kind == OpKind::kReducescatter) return Status::Ok();
  if (operation->tensors.size() != 1) return Status::Ok();  // which is rejected later
  const int64_t rows = operation->tensors.front().rows;
  const auto size = static_cast<int64_t>(members);
  if (signature.kind == OpKind::kScatter) {
    for (uint32_t member = 0; member < members; ++member) {
      operation->splits.push_back(RowsOf(rows, static_cast<uint32_t>(members), member).count);
    }
    return Status::Ok();
  }
  if (rows % size != 0) {
    return Status::InvalidArgument("alltoall without splits: " + std::to_string(rows) +
                                   " rows can't be divided evenly among " + std::to_string(size) +
                                   " ranks");
  }
  operation->splits.assign(members, rows / size);
  return Status::Ok();
}

void DescribeNewSet(const hs_request& given, Operation* operation) {
  std::vector<int> ranks(given.ranks, given.ranks + given.num_ranks);
  if ((given.set_flags & HS_SET_ORDERED) == 0) std::sort(ranks.begin(), ranks.end());
  const bool distinct = (given.set_flags & HS_SET_DISTINCT) != 0;
  if ((given.set_flags & HS_SET_BY_MEMBERS) == 0) {
    operation->request.signature.ranks = std::move(ranks);
    operation->request.signature.distinct = distinct;
    return;
  }
  const std::string tag = given.name == nullptr ? "" : given.name;
  operation->request.name.clear();
  operation->new_set = std::make_unique<NewSet>(NewSet{std::move(ranks), distinct, tag});
}

// Sets that their members created are removed by an operation of these members.
void DescribeRemoval(const hs_request& given, Operation* operation) {
  operation->request.signature.target_set = given.target;
  if (!IsMadeByMembers(given.target)) return;
  operation->process_set_id = given.target;
  operation->abandons = (given.set_flags & HS_SET_ABANDONED) != 0;
}

}  // namespace

Status AttachDevice(const hs_device& given, Operation* operation) {
  const auto device = CudaDevice::Get(given.cuda_device);
  if (!device.ok()) return device.status();
  auto ready = (*device)->RecordReady(static_cast<CudaStreamHandle>(given.stream));
  if (!ready.ok()) return ready.status();
  operation->request.signature.on_device = true;
  operation->on_device = std::make_unique<OnDevice>();
  operation->on_device->device = *device;
  operation->on_device->ready = ready.TakeValue();
  return Status::Ok();
}

Result<OperationPtr> OperationOf(hs_runtime* runtime, const hs_request& given) {
  HS_RETURN_IF_ERROR(CheckRequest(given));
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = given.process_set;
  Request& request = operation->request;
  Signature& signature = request.signature;
  signature.kind = static_cast<OpKind>(given.kind);
  request.priority = given.priority;
  if (signature.kind == OpKind::kAddProcessSet || signature.kind == OpKind::kRemoveProcessSet) {
    request.name = kRegistrationName;
  } else if (given.name != nullptr) {
    request.name = given.name;
  }
  for (int32_t i = 0; i < given.num_tensors; ++i) {
    HS_RETURN_IF_ERROR(CopyTensor(given.tensors[i], operation.get()));
  }
  operation->sealed = given.sealed != 0;
  if (Reduces(signature.kind)) {
    signature.reduce_op = static_cast<ReduceOp>(given.reduce_op);
    signature.prescale = given.prescale;
    signature.postscale = given.postscale;
    signature.encoding = *Encoding::FromCode(given.encoding);
  }
  if (HasRoot(signature.kind)) signature.root = given.root;
  if (given.kind == HS_REMOVE_PROCESS_SET) DescribeRemoval(given, operation.get());
  if (given.kind == HS_ADD_PROCESS_SET) DescribeNewSet(given, operation.get());
  if (given.kind == HS_ALLTOALL || given.kind == HS_SCATTER || given.kind == HS_REDUCESCATTER) {
    const auto members = runtime->job->runtime().ProcessSetRanks(given.process_set);
    if (members) HS_RETURN_IF_ERROR(CopySplits(given, members->size(), operation.get()));
  }
  if (given.callback != nullptr) {
    operation->callback = [callback = given.callback,
                           user = given.user_data](const Status& status) {
      callback(user, static_cast<hs_code>(status.code()));
    };
  }
  if (given.device != nullptr && given.num_tensors > 0) {
    HS_RETURN_IF_ERROR(AttachDevice(*given.device, operation.get()));
  }
  return operation;
}

namespace {

bool IsLaunched(const Operation& operation) {
  return operation.on_device != nullptr && operation.on_device->launched.load();
}

Result<AllgatherResult*> OutputOf(hs_handle* handle, int32_t index) {
  const Operation& operation = *handle->operation;
  const bool has_output = IsLaunched(operation) || (operation.done.load() && operation.status.ok());
  if (!has_output) {
    return Status::InvalidArgument("the operation has no output, because it is not done or failed");
  }
  auto& results = handle->operation->results;
  if (index < 0 || static_cast<size_t>(index) >= results.size()) {
    return Status::InvalidArgument("the operation has no allocated output " +
                                   std::to_string(index));
  }
  return &results[static_cast<size_t>(index)];
}

}  // namespace
}  // namespace horoscale

using horoscale::CheckAlive;
using horoscale::CheckEnumerator;
using horoscale::CheckGiven;
using horoscale::Status;
using horoscale::ToCode;

hs_code hs_enqueue(hs_runtime* runtime, const hs_request* request, hs_handle** out) {
  if (Status status = CheckGiven(request, out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  auto operation = horoscale::OperationOf(runtime, *request);
  if (!operation.ok()) return ToCode(operation.status());
  Status status = runtime->job->runtime().Enqueue(*operation, request->will_wait != 0);
  if (!status.ok()) return ToCode(status);
  *out = new hs_handle{operation.TakeValue(), runtime};
  return HS_OK;
}

hs_code hs_run(hs_runtime* runtime, const hs_request* request, double seconds, hs_handle** out) {
  if (Status status = CheckGiven(request, out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  auto operation = horoscale::OperationOf(runtime, *request);
  if (!operation.ok()) return ToCode(operation.status());
  horoscale::Runtime& job = runtime->job->runtime();
  if (Status status = job.Enqueue(*operation, true); !status.ok()) return ToCode(status);
  Status status = job.Wait(*operation, seconds);
  const bool is_done = (*operation)->done.load();
  if (is_done) status = (*operation)->status;  // even if it was done only after the timeout
  if (!is_done || !(*operation)->results.empty()) {
    *out = new hs_handle{operation.TakeValue(), runtime};
  }
  return ToCode(status);
}

hs_code hs_notify(hs_runtime* runtime) {
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  runtime->job->runtime().Notify();
  return HS_OK;
}

int32_t hs_poll(const hs_handle* handle) {
  return handle != nullptr && handle->operation->done.load() ? 1 : 0;
}

hs_code hs_wait(hs_handle* handle, double seconds) {
  if (Status status = CheckGiven(handle); !status.ok()) return ToCode(status);
  // A handle may outlive its runtime, which is not needed for an operation that is done.
  if (handle->operation->done.load()) return ToCode(handle->operation->status);
  if (Status status = CheckAlive(handle->runtime); !status.ok()) return ToCode(status);
  return ToCode(handle->runtime->job->runtime().Wait(handle->operation, seconds));
}

int32_t hs_launched(const hs_handle* handle) {
  if (handle == nullptr) return 0;
  return horoscale::IsLaunched(*handle->operation) || handle->operation->done.load() ? 1 : 0;
}

hs_code hs_wait_on_stream(hs_handle* handle, void* stream, double seconds) {
  if (Status status = CheckGiven(handle); !status.ok()) return ToCode(status);
  const horoscale::Operation& operation = *handle->operation;
  if (operation.on_device == nullptr) {
    return ToCode(Status::InvalidArgument("the operation's tensors are in host memory"));
  }
  if (hs_launched(handle) == 0) {
    if (Status status = CheckAlive(handle->runtime); !status.ok()) return ToCode(status);
    Status status = handle->runtime->job->runtime().WaitLaunched(handle->operation, seconds);
    if (!status.ok()) return ToCode(status);
  }
  if (operation.done.load() && !operation.status.ok()) return ToCode(operation.status);
  if (operation.on_device->finished == nullptr) return HS_OK;  // nothing was launched
  return ToCode(operation.on_device->device->Wait(static_cast<horoscale::CudaStreamHandle>(stream),
                                                  *operation.on_device->finished));
}

hs_code hs_output(hs_handle* handle, int32_t index, void** data, size_t* bytes) {
  if (Status status = CheckGiven(handle, data, bytes); !status.ok()) return ToCode(status);
  *data = nullptr;
  *bytes = 0;
  const auto output = horoscale::OutputOf(handle, index);
  if (!output.ok()) return ToCode(output.status());
  int64_t rows = 0;
  for (const int64_t r : (*output)->rows) rows += r;
  const auto& tensor = handle->operation->tensors[static_cast<size_t>(index)];
  if (tensor.out != nullptr) {
    return ToCode(
        Status::InvalidArgument("output " + std::to_string(index) +
                                " was written to the memory that the request provided for it"));
  }
  const int64_t size = rows * tensor.row_bytes;
  if (size > 0 && (*output)->data == nullptr) {
    return ToCode(
        Status::InvalidArgument("output " + std::to_string(index) + " was already returned"));
  }
  *bytes = static_cast<size_t>(size);
  *data = (*output)->data.release();
  return HS_OK;
}

hs_code hs_output_rows(hs_handle* handle, int32_t index, int64_t* rows, int32_t capacity) {
  if (Status status = CheckGiven(handle, rows); !status.ok()) return ToCode(status);
  const auto output = horoscale::OutputOf(handle, index);
  if (!output.ok()) return ToCode(output.status());
  const auto& own = (*output)->rows;
  std::copy_n(own.begin(), std::min(own.size(), static_cast<size_t>(std::max(capacity, 0))), rows);
  return HS_OK;
}

int64_t hs_result(const hs_handle* handle) {
  return hs_launched(handle) == 1 ? handle->operation->result : -1;
}

void hs_handle_free(hs_handle* handle) { delete handle; }

void hs_free(void* memory) { std::free(memory); }

void hs_device_free(void* memory) { horoscale::FreeDeviceMemory(memory); }

hs_code hs_check_reduction(int32_t dtype, int32_t op) {
  Status known = CheckEnumerator("element type", dtype, horoscale::kNumDataTypes);
  if (known.ok()) known = CheckEnumerator("reduction operator", op, horoscale::kNumReduceOps);
  if (!known.ok()) return ToCode(known);
  const auto type = static_cast<horoscale::DataType>(dtype);
  if (op == HS_ADASUM && horoscale::HasAdasum(type)) return HS_OK;
  return ToCode(horoscale::CheckReduction({static_cast<horoscale::DataType>(dtype),
                                           static_cast<horoscale::ReduceOp>(op), 1.0, 1.0, 1}));
}
