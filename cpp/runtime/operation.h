// Operation: one enqueued request, from enqueue to completion. Handles of the C ABI share it.
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
  int64_t out_rows = 0;  // for which out has room (allgather, alltoall), where it isn't null
};

// What an operation on CUDA tensors has beside: it is launched (its work has been given to the
// device) some time before it is done.
struct OnDevice {
  CudaDevice* device = nullptr;
  CudaReady ready;
  CudaEventPtr finished;  // set before `launched`, constant afterwards
  std::atomic<bool> launched{false};
};

struct Operation;

// A send or a receive. It is beside the plan: its operation's request is empty.
struct Message {
  bool is_send = true;
  int peer = 0;  // global rank; of a receive also kAnyPeer
  Envelope envelope;
  std::byte* memory = nullptr;  // of a send it is only read; of a view where it is, once it is done
  bool is_view = false;         // a receive that leaves the message where its sender has it
  std::shared_ptr<Operation> released =
      {};  // not null: this is no receive, but gives that view back

  // Written by the engine's owner. The number, which is the sender's: of a view where it is seen at
  // its place, of a send whose tensor is copied when it has been asked for; 0: otherwise.
  uint64_t number = 0;
  bool is_unwanted = false;  // of a view: it was given back before the message came
  OwnedBytes copy = {};      // of a view: what is seen otherwise; of a CUDA tensor: it on the host
  bool at_device = false;    // the device copies it, or carries it
  bool by_nccl = false;      // it carries it

  // Where the bytes are for the host.
  std::byte* place() const { return copy ? copy.get() : memory; }
};

// What becomes of an operation. Written by the engine's owner until it is done, constant
// afterwards.
struct OperationOutcome {
  double blocked_since = 0;    // as seen twice a second: a thread waits; 0: none
  double blocked_told_at = 0;  // to rank 0
  int open = 1;  // sets that have not finished it: a join() is submitted to all sets of its rank
  double planned_at = 0;
  double started_at = 0;
  uint64_t plan_entry = 0;    // that ended it
  uint64_t post = 0;          // else: how many that took one hop ended before, and this one
  size_t bucket_tensors = 0;  // that the entry executed at once
  Encoding encoding;          // that was chosen for it, where it is adaptive
  double squares = 0;         // as in TensorResiduals
  double error_squares = 0;
  std::vector<AllgatherResult> results;
  int64_t result = -1;
  Status status;
};

struct Operation : OperationOutcome {
  // How errors and reports call it.
  std::string DisplayName() const;

  // An operation that is done, and that nobody else holds, may be enqueued again.
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
  bool sealed = false;  // between hosts nobody changes what it moves
  std::function<void(const Status&)> callback;
  std::unique_ptr<OnDevice> on_device;  // null: host memory
  bool will_wait = false;               // a thread waits for it at once
  std::unique_ptr<Message> message;     // null: a collective
  std::unique_ptr<NewSet> new_set;      // that its members make: beside the plan, too
  bool abandons = false;                // a removal: what is pending on the set is not waited for
  double enqueued_at = 0;

  // Of an unnamed collective, among those of its set: which one others mean. 0: the set has not
  // taken it. Written by the engine's owner; users' threads name the operation, too.
  std::atomic<uint64_t> index{0};
  std::atomic<bool> done{false};
  std::atomic<int> waiters{0};  // threads
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace horoscale
