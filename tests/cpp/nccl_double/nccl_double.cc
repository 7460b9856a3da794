#include "nccl_double/nccl_double.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_double/cuda_double.h"
#include "nccl_double/fold_double.h"
#include "nccl_double/mailboxes.h"

namespace nccl_double {
namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;
constexpr int kFirstOwnOperator = 5;
constexpr int kDevices = 8;
// The number of polls for which a communicator is busy after a launch, as NCCL's nonblocking ones
// are.
constexpr int kBusyPolls = 2;
constexpr std::chrono::microseconds kPause(50);

// State that tests set and query, by device.
struct Knobs {
  std::atomic<bool> exclusive{false};
  std::array<std::atomic<int>, kDevices> delay{};
  std::array<std::atomic<int>, kDevices> hold{};
  std::array<std::atomic<int>, kDevices> keep_busy{};
  std::array<std::atomic<int>, kDevices> fail{};
  std::atomic<int> live{0};
  std::atomic<int> aborted{0};
  std::mutex mutex;  // guards the following
  std::map<int, std::string> logs;
  std::map<int, std::deque<const void*>> waiting;  // kernels in the order of their launch
};
Knobs& TheKnobs() {
  static auto* const knobs = new Knobs;
  return *knobs;
}

enum class Call { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };
constexpr const char* kNames[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
                                  "ReduceScatter", "Send",   "Recv"};

struct Launch {
  Call call;
  const char* in;
  char* out;
  size_t count;
  int type;
  Operator op;
  int peer;  // or root
};

}  // namespace
}  // namespace nccl_double

// A communicator. Its owner's thread makes calls; kernels run in the streams' threads.
struct ncclComm {
  std::string path;
  int size = 0;
  int rank = 0;
  int device = 0;
  std::unique_ptr<nccl_double::Mailboxes> boxes;
  std::atomic<bool> aborted{false};
  std::atomic<bool> finalizing{false};
  std::atomic<int> error{nccl_double::kSuccess};
  std::atomic<int> busy_polls{0};
  std::atomic<int> kernels{0};  // queued or running
  std::map<int, nccl_double::Operator> operators;
  int next_operator = nccl_double::kFirstOwnOperator;

  bool Stopped() const { return aborted.load() || error.load() != nccl_double::kSuccess; }
};

namespace nccl_double {
namespace {

// The arguments on which the ranks of one kernel must agree.
struct Heading {
  int call, type, root;
  int padding;
  uint64_t count;
  bool operator==(const Heading&) const = default;
};

class Kernel {
 public:
  Kernel(ncclComm* comm, std::vector<Launch> launches)
      : comm_(comm), launches_(std::move(launches)) {
    std::lock_guard lock(TheKnobs().mutex);
    TheKnobs().waiting[comm->device].push_back(this);
  }

  void Run() {
    const bool begins = Begin();
    for (size_t i = 0; begins && i < launches_.size() && !comm_->Stopped();) i = RunFrom(i);
    End();
    comm_->kernels.fetch_sub(1);
  }

 private:
  using Size = size_t;
  int size() const { return comm_->size; }
  auto Stop() const {
    return [this] { return comm_->Stopped(); };
  }

  // Waits for its turn on the device, and while the test holds it.
  bool Begin() {
    Knobs& knobs = TheKnobs();
    const auto device = static_cast<size_t>(comm_->device);
    while (knobs.hold[device].load() != 0 || !IsFirst()) {
      if (comm_->Stopped()) return false;
      std::this_thread::sleep_for(kPause);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(knobs.delay[device].load()));
    if (const int error = knobs.fail[device].exchange(0); error != 0) comm_->error.store(error);
    return !comm_->Stopped();
  }

  bool IsFirst() const {
    Knobs& knobs = TheKnobs();
    if (!knobs.exclusive.load()) return true;
    std::lock_guard lock(knobs.mutex);
    return knobs.waiting[comm_->device].front() == this;
  }

  void End() {
    Knobs& knobs = TheKnobs();
    std::lock_guard lock(knobs.mutex);
    std::erase(knobs.waiting[comm_->device], this);
  }

  // Runs one collective, or a series of sends and receives; returns the index of the next call.
  size_t RunFrom(size_t i) {
    if (launches_[i].call != Call::kSend && launches_[i].call != Call::kReceive) {
      RunCollective(launches_[i]);
      return i + 1;
    }
    std::vector<Transfer> transfers;
    for (; i < launches_.size(); ++i) {
      const Launch& launch = launches_[i];
      if (launch.call == Call::kSend) {
        transfers.push_back({launch.peer, launch.in, nullptr, launch.count});
      } else if (launch.call == Call::kReceive) {
        transfers.push_back({launch.peer, nullptr, launch.out, launch.count});
      } else {
        break;
      }
    }
    (void)comm_->boxes->Run(std::move(transfers), Stop());
    return i;
  }

  // All ranks exchange their whole data, whatever the operation: it is small.
  void RunCollective(const Launch& launch) {
    const Heading own{static_cast<int>(launch.call), launch.type, launch.peer, 0, launch.count};
    std::vector<Heading> headings(static_cast<Size>(size()));
    if (!Exchange(reinterpret_cast<const char*>(&own), sizeof(own), [&](int r) {
          return reinterpret_cast<char*>(&headings[static_cast<Size>(r)]);
        })) {
      return;
    }
    for (const Heading& heading : headings) {
      if (heading != own) comm_->error.store(kInvalidUsage);
    }
    if (comm_->Stopped()) return;
    const size_t ranks = static_cast<Size>(size());
    const size_t bytes =
        launch.count * SizeOfType(launch.type) * (launch.call == Call::kReduceScatter ? ranks : 1);
    std::vector<std::vector<char>> inputs(ranks, std::vector<char>(bytes));
    const bool gives = launch.call != Call::kBroadcast || launch.peer == comm_->rank;
    const std::vector<char> nothing(gives ? 0 : bytes);
    if (Exchange(gives ? launch.in : nothing.data(), bytes,
                 [&](int r) { return inputs[static_cast<Size>(r)].data(); })) {
      Store(launch, inputs);
    }
  }

  bool Exchange(const char* own, size_t bytes, const std::function<char*(int)>& place) {
    std::vector<Transfer> transfers;
    for (int rank = 0; rank < size(); ++rank) {
      transfers.push_back({rank, own, nullptr, bytes});
      transfers.push_back({rank, nullptr, place(rank), bytes});
    }
    return comm_->boxes->Run(std::move(transfers), Stop());
  }

  void Store(const Launch& launch, const std::vector<std::vector<char>>& inputs) {
    const size_t bytes = launch.count * SizeOfType(launch.type);
    std::vector<const char*> operands;
    for (const auto& input : inputs) operands.push_back(input.data());
    switch (launch.call) {
      case Call::kReduce:
        if (launch.peer != comm_->rank) return;
        [[fallthrough]];
      case Call::kAllReduce:
        return FoldInto(launch.out, operands, launch.count, launch.type, launch.op);
      case Call::kReduceScatter:
        for (const char*& operand : operands) operand += static_cast<Size>(comm_->rank) * bytes;
        return FoldInto(launch.out, operands, launch.count, launch.type, launch.op);
      case Call::kBroadcast:
        std::memcpy(launch.out, operands[static_cast<Size>(launch.peer)], bytes);
        return;
      default:
        for (size_t rank = 0; rank < operands.size(); ++rank) {
          std::memcpy(launch.out + rank * bytes, operands[rank], bytes);
        }
    }
  }

  ncclComm* const comm_;
  const std::vector<Launch> launches_;
};

// Calls between ncclGroupStart and ncclGroupEnd, by communicator in the order of their first call.
struct Group {
  int depth = 0;
  struct Part {
    ncclComm* comm;
    Stream* stream;
    std::vector<Launch> launches;
  };
  std::vector<Part> parts;
};
thread_local Group group;

void LaunchAll(Group::Part& part) {
  Knobs& knobs = TheKnobs();
  {
    std::lock_guard lock(knobs.mutex);
    std::string& log = knobs.logs[part.comm->device];
    const char* before = " ";
    log += part.comm->path;
    for (const Launch& launch : part.launches) {
      log += std::exchange(before, "+");
      log += kNames[static_cast<int>(launch.call)];
    }
    log += "\n";
  }
  part.comm->kernels.fetch_add(1);
  part.comm->busy_polls.store(kBusyPolls);
  const auto kernel = std::make_shared<Kernel>(part.comm, std::move(part.launches));
  Push(part.stream, [kernel] { kernel->Run(); });
}

int Add(ncclComm* comm, Stream* stream, const Launch& launch) {
  if (comm->Stopped()) return kInvalidUsage;
  const bool alone = group.depth == 0;
  const auto part = std::find_if(group.parts.begin(), group.parts.end(),
                                 [&](const Group::Part& known) { return known.comm == comm; });
  if (part != group.parts.end()) {
    part->launches.push_back(launch);
  } else {
    group.parts.push_back({comm, stream, {launch}});
  }
  if (!alone) return kSuccess;
  LaunchAll(group.parts.front());
  group.parts.clear();
  return kInProgress;
}

Operator OperatorOf(ncclComm* comm, int op) {
  const auto own = comm->operators.find(op);
  return own == comm->operators.end() ? Operator{op, 1.0} : own->second;
}

const char* Bytes(const void* memory) { return static_cast<const char*>(memory); }
char* Bytes(void* memory) { return static_cast<char*>(memory); }

void AwaitKernels(const ncclComm* comm) {
  while (comm->kernels.load() > 0) std::this_thread::sleep_for(kPause);
}

}  // namespace
}  // namespace nccl_double

using nccl_double::Add;
using nccl_double::Bytes;
using nccl_double::Call;
using nccl_double::OperatorOf;
using nccl_double::Stream;
using nccl_double::TheKnobs;

void double_set_exclusive(int exclusive) { TheKnobs().exclusive.store(exclusive != 0); }
void double_set_delay(int device, int microseconds) {
  TheKnobs().delay[static_cast<size_t>(device)].store(microseconds);
}
void double_hold(int device, int hold) { TheKnobs().hold[static_cast<size_t>(device)].store(hold); }
void double_keep_busy(int device, int keep) {
  TheKnobs().keep_busy[static_cast<size_t>(device)].store(keep);
}
void double_fail_next(int device, int result) {
  TheKnobs().fail[static_cast<size_t>(device)].store(result);
}
int double_live_communicators() { return TheKnobs().live.load(); }
int double_aborted_communicators() { return TheKnobs().aborted.load(); }
size_t double_log(int device, char* out, size_t capacity) {
  std::lock_guard lock(TheKnobs().mutex);
  const std::string& log = TheKnobs().logs[device];
  if (capacity > 0) std::memcpy(out, log.data(), std::min(capacity, log.size()));
  return log.size();
}

struct ncclUniqueId {
  char bytes[128];
};

#pragma GCC visibility push(default)
extern "C" {

int ncclGetVersion(int* version) {
  const char* const given = std::getenv("NCCL_DOUBLE_VERSION");
  *version = given == nullptr ? 22703 : std::atoi(given);
  return nccl_double::kSuccess;
}

int ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  const std::string name = "nccl-double-" + std::to_string(getpid()) + "-" +
                           std::to_string(random()) + std::to_string(random());
  const std::string path = (std::filesystem::temp_directory_path() / name).string();
  if (path.size() >= sizeof(id->bytes)) return nccl_double::kSystemError;
  std::memcpy(id->bytes, path.c_str(), path.size() + 1);
  return nccl_double::kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == nccl_double::kRemoteError ? "remote process exited or there was a network error"
                                             : "an error of the double";
}

const char* ncclGetLastError(ncclComm*) { return "injected"; }

int ncclCommInitRankConfig(ncclComm** out, int size, ncclUniqueId id, int rank, void* config) {
  int blocking = 1;
  std::memcpy(&blocking, Bytes(config) + 16, sizeof(blocking));
  if (blocking != 0) return nccl_double::kInvalidUsage;
  auto comm = std::make_unique<ncclComm>();
  comm->path = id.bytes;
  comm->size = size;
  comm->rank = rank;
  comm->device = nccl_double::CurrentDevice();
  comm->boxes = nccl_double::Mailboxes::Open(comm->path, size, rank);
  if (comm->boxes == nullptr) return nccl_double::kSystemError;
  TheKnobs().live.fetch_add(1);
  *out = comm.release();
  return nccl_double::kInProgress;
}

int ncclCommGetAsyncError(ncclComm* comm, int* result) {
  *result = comm->error.load();
  if (*result != nccl_double::kSuccess) return nccl_double::kSuccess;
  const bool left = !comm->finalizing.load() || comm->boxes->AllLeft();
  const bool kept = TheKnobs().keep_busy[static_cast<size_t>(comm->device)].load() != 0;
  if (!comm->boxes->AllJoined() || !left || kept || comm->busy_polls.fetch_sub(1) > 0) {
    *result = nccl_double::kInProgress;
  }
  return nccl_double::kSuccess;
}

int ncclCommFinalize(ncclComm* comm) {
  comm->finalizing.store(true);
  comm->boxes->Leave();
  return nccl_double::kInProgress;
}

int ncclCommDestroy(ncclComm* comm) {
  nccl_double::AwaitKernels(comm);
  TheKnobs().live.fetch_sub(1);
  delete comm;
  return nccl_double::kSuccess;
}

int ncclCommAbort(ncclComm* comm) {
  comm->aborted.store(true);
  TheKnobs().aborted.fetch_add(1);
  return ncclCommDestroy(comm);
}

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, ncclComm* comm) {
  if (residence != 1) return nccl_double::kInvalidUsage;
  *op = comm->next_operator++;
  comm->operators[*op] = {0, nccl_double::ScalarOf(scalar, type)};
  return nccl_double::kSuccess;
}

int ncclRedOpDestroy(int op, ncclComm* comm) {
  return comm->operators.erase(op) == 1 ? nccl_double::kSuccess : nccl_double::kInvalidUsage;
}

int ncclGroupStart() {
  ++nccl_double::group.depth;
  return nccl_double::kSuccess;
}

int ncclGroupEnd() {
  if (--nccl_double::group.depth > 0) return nccl_double::kSuccess;
  const bool any = !nccl_double::group.parts.empty();
  for (auto& part : nccl_double::group.parts) nccl_double::LaunchAll(part);
  nccl_double::group.parts.clear();
  return any ? nccl_double::kInProgress : nccl_double::kSuccess;
}

int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, ncclComm* comm,
                  Stream* stream) {
  return Add(comm, stream,
             {Call::kAllReduce, Bytes(in), Bytes(out), count, type, OperatorOf(comm, op), 0});
}

int ncclReduce(const void* in, void* out, size_t count, int type, int op, int root, ncclComm* comm,
               Stream* stream) {
  return Add(comm, stream,
             {Call::kReduce, Bytes(in), Bytes(out), count, type, OperatorOf(comm, op), root});
}

int ncclBroadcast(const void* in, void* out, size_t count, int type, int root, ncclComm* comm,
                  Stream* stream) {
  return Add(comm, stream, {Call::kBroadcast, Bytes(in), Bytes(out), count, type, {}, root});
}

int ncclAllGather(const void* in, void* out, size_t count, int type, ncclComm* comm,
                  Stream* stream) {
  return Add(comm, stream, {Call::kAllGather, Bytes(in), Bytes(out), count, type, {}, 0});
}

int ncclReduceScatter(const void* in, void* out, size_t count, int type, int op, ncclComm* comm,
                      Stream* stream) {
  return Add(comm, stream,
             {Call::kReduceScatter, Bytes(in), Bytes(out), count, type, OperatorOf(comm, op), 0});
}

int ncclSend(const void* in, size_t count, int type, int peer, ncclComm* comm, Stream* stream) {
  return Add(comm, stream, {Call::kSend, Bytes(in), nullptr, count, type, {}, peer});
}

int ncclRecv(void* out, size_t count, int type, int peer, ncclComm* comm, Stream* stream) {
  return Add(comm, stream, {Call::kReceive, nullptr, Bytes(out), count, type, {}, peer});
}

}  // extern "C"
#pragma GCC visibility pop
