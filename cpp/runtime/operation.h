// Operation: an enqueued request, until its completion. Shared with handles of the C ABI.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/nccl/cuda_device.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "core/member.h"
#include "core/message_frames.h"
#include "core/request.h"
#include "core/set_creation_frames.h"

namespace horoscale {

// The caller's memory of one tensor of a request.
struct TensorMemory {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t rows = 1;  // first dimension; 1 for a 0-d tensor
  int64_t row_bytes = 0;
  int64_t out_rows = 0;  // capacity of out in rows (allgather, alltoall), if it is not null
};

// Additional state of an operation on CUDA tensors: it is launched (its work is submitted to the
// device) some time before it is done.
struct OnDevice {
  CudaDevice* device = nullptr;
  CudaReady ready;
  CudaEventPtr finished;  // set before `launched`, constant afterwards
  std::atomic<bool> launched{false};
};

struct Operation;

// A send or a receive. It is not planned: its operation's request is empty.
struct Message {
  bool is_send = true;
  int peer = 0;  // global rank; for a receive also kAnyPeer
  Envelope envelope;
  std::byte* memory = nullptr;  // for a send, only read; for a view, the message's location when it
                                // is done
  bool is_view = false;         // a receive that accesses the message in its sender's memory
  std::shared_ptr<Operation> released = {};  // if not null, the operation releases that view

  // Written by the engine's owner. The sender's number of the message, for a view that is accessed
  // in place, and for a send whose tensor is copied when it is requested; otherwise 0.
  uint64_t number = 0;
  bool is_unwanted = false;  // for a view: it was released before the message arrived
  OwnedBytes copy = {};      // for a view that is not accessed in place, its memory; for a CUDA
                             // tensor, its copy on the host
  bool at_device = false;    // the device is copying or transferring it
  bool by_nccl = false;      // NCCL is transferring it

  // The memory for access by the host.
  std::byte* place() const { return copy ? copy.get() : memory; }
};

// The state and result of an operation. Written by the engine's owner until it is done, constant
// afterwards.
struct OperationOutcome {
  double blocked_since = 0;    // a thread has been waiting since, checked twice a second; 0: none
  double blocked_told_at = 0;  // when it was last reported to rank 0
  int open = 1;  // sets that have not finished it: a join() is submitted to all sets of its rank
  double planned_at = 0;
  double started_at = 0;
  uint64_t plan_entry = 0;    // the plan entry that ended it
  uint64_t post = 0;          // otherwise the number of one-hop operations that have ended,
                              // including this one
  size_t bucket_tensors = 0;  // number of tensors in the entry's bucket
  Encoding encoding;          // the chosen encoding of an adaptive operation
  double squares = 0;         // as in TensorResiduals
  double error_squares = 0;
  std::vector<AllgatherResult> results;
  int64_t result = -1;
  Status status;
};

struct Operation : OperationOutcome {
  // The name in errors and reports.
  std::string DisplayName() const;

  // Resets an operation that is done and has no other references, so that it can be enqueued again.
  void BeginAnew() {
    static_cast<OperationOutcome&>(*this) = {};
    index.store(0);
    done.store(false);
  }

  // Set before it is enqueued, constant afterwards.
  Token token = kNoToken;
  int process_set_id = 0;
  Request request;
  std::vector<TensorMemory> tensors;
  std::vector<int64_t> splits;
  bool sealed = false;  // its data is authenticated between hosts
  std::function<void(const Status&)> callback;
  std::unique_ptr<OnDevice> on_device;  // null: host memory
  bool will_wait = false;               // a thread waits for it immediately
  std::unique_ptr<Message> message;     // null: a collective
  std::unique_ptr<NewSet> new_set;      // a set that its members create; also not planned
  bool abandons = false;                // for a removal: does not wait for the set's pending
                                        // operations
  double enqueued_at = 0;

  // The index of an unnamed collective in its set. 0: not submitted to the set yet. Written by the
  // engine's owner; atomic because user threads read it for the operation's name.
  std::atomic<uint64_t> index{0};
  std::atomic<bool> done{false};
  std::atomic<int> waiters{0};  // threads
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace horoscale
