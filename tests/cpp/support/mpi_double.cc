#include "support/mpi_double.h"

#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace horoscale::testing {
namespace {

constexpr int kTruncated = 15;
constexpr int kInjected = 16;
const MpiConstants& kConstants = kMpichConstants;

enum class Kind { kDuplicate, kBroadcast, kAllreduce, kReducescatter, kAllgather };

struct Comm;

// One collective: the arguments of each rank.
struct Meeting {
  struct Part {
    const void* in = nullptr;
    void* out = nullptr;
    size_t bytes = 0;
    std::vector<int> counts;
  };
  Kind kind;
  MpiHandle type = 0;
  int root = 0;
  std::vector<int> world_ranks;
  std::vector<Part> parts;
  size_t come = 0;
  bool is_done = false;
  int error = 0;
};

// State shared by the ranks of a communicator.
struct Context {
  std::vector<int> world_ranks;
  std::vector<size_t> begun;  // collectives, by rank
  std::map<size_t, std::shared_ptr<Meeting>> meetings;
};

struct Comm {
  std::shared_ptr<Context> context;
  int rank;
};

struct Group {
  std::vector<int> world_ranks;
};

struct Request {
  std::shared_ptr<Meeting> meeting;
};

// Ranks that create a communicator together.
struct Making {
  size_t come = 0;
  size_t gone = 0;
  std::shared_ptr<Context> context;
};

}  // namespace

struct MpiDouble::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Comm*> world;
  std::set<Comm*> living;
  std::map<std::pair<Context*, std::vector<int>>, std::shared_ptr<Making>> making;
  std::set<std::string> failing;
  // Keeps pending operations and returned memory reachable for the leak checker.
  std::vector<std::shared_ptr<Request>> requests;
  bool is_held = false;
};

namespace {

MpiDouble::State* now = nullptr;

template <typename T>
T* Of(MpiHandle handle) {
  return reinterpret_cast<T*>(handle);
}

MpiHandle HandleOf(const void* object) { return reinterpret_cast<MpiHandle>(object); }

int Fails(const char* function) { return now->failing.erase(function) > 0 ? kInjected : 0; }

Comm* MakeComm(std::shared_ptr<Context> context, int rank) {
  auto* const comm = new Comm{std::move(context), rank};
  now->living.insert(comm);
  return comm;
}

std::shared_ptr<Context> MakeContext(std::vector<int> world_ranks) {
  auto context = std::make_shared<Context>();
  context->begun.resize(world_ranks.size());
  context->world_ranks = std::move(world_ranks);
  return context;
}

size_t SizeOfType(MpiHandle type) {
  if (type == kConstants.float32.value || type == kConstants.int32.value) return 4;
  assert(type == kConstants.byte.value);
  return 1;
}

template <typename T>
void AddTo(void* sum, const void* values, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(T); ++i) {
    static_cast<T*>(sum)[i] += static_cast<const T*>(values)[i];
  }
}

// The sum of all ranks' values, wherever they are; all have the same length.
std::vector<std::byte> Sum(const Meeting& meeting) {
  std::vector<std::byte> sum(meeting.parts[0].bytes);
  for (const Meeting::Part& part : meeting.parts) {
    const void* const in = HandleOf(part.in) == kConstants.in_place ? part.out : part.in;
    if (meeting.type == kConstants.float32.value) {
      AddTo<float>(sum.data(), in, sum.size());
    } else {
      AddTo<int32_t>(sum.data(), in, sum.size());
    }
  }
  return sum;
}

void Reduce(const Meeting& meeting) {
  const std::vector<std::byte> sum = Sum(meeting);
  size_t at = 0;
  for (size_t rank = 0; rank < meeting.parts.size(); ++rank) {
    const Meeting::Part& part = meeting.parts[rank];
    size_t bytes = part.bytes;
    if (meeting.kind == Kind::kReducescatter) {
      bytes = static_cast<size_t>(part.counts[rank]) * SizeOfType(meeting.type);
    }
    std::memcpy(part.out, sum.data() + at, bytes);
    if (meeting.kind == Kind::kReducescatter) at += bytes;
  }
}

void Copy(const Meeting& meeting) {
  for (size_t to = 0; to < meeting.parts.size(); ++to) {
    auto* const out = static_cast<std::byte*>(meeting.parts[to].out);
    if (meeting.kind == Kind::kBroadcast) {
      const Meeting::Part& root = meeting.parts[static_cast<size_t>(meeting.root)];
      if (root.out != out) std::memcpy(out, root.out, root.bytes);
      continue;
    }
    for (size_t from = 0; from < meeting.parts.size(); ++from) {
      const Meeting::Part& part = meeting.parts[from];
      std::memcpy(out + from * part.bytes, part.in, part.bytes);
    }
  }
}

void Duplicate(const Meeting& meeting) {
  const auto context = MakeContext(meeting.world_ranks);
  for (size_t rank = 0; rank < meeting.parts.size(); ++rank) {
    *static_cast<MpiHandle*>(meeting.parts[rank].out) =
        HandleOf(MakeComm(context, static_cast<int>(rank)));
  }
}

void Execute(Meeting& meeting) {
  meeting.is_done = true;
  for (const Meeting::Part& part : meeting.parts) {
    if (part.bytes != meeting.parts[0].bytes) meeting.error = kTruncated;
  }
  if (meeting.error != 0) return;
  if (meeting.kind == Kind::kDuplicate) return Duplicate(meeting);
  if (meeting.kind == Kind::kBroadcast || meeting.kind == Kind::kAllgather) return Copy(meeting);
  Reduce(meeting);
}

// The n-th collective of each rank on a communicator is the same one.
int Begin(const char* function, MpiHandle handle, Kind kind, MpiHandle type, int root,
          Meeting::Part part, MpiHandle* request) {
  std::lock_guard lock(now->mutex);
  if (const int error = Fails(function)) return error;
  Comm* const comm = Of<Comm>(handle);
  assert(now->living.contains(comm));
  Context& context = *comm->context;
  std::shared_ptr<Meeting>& meeting = context.meetings[context.begun[comm->rank]++];
  if (meeting == nullptr) {
    meeting = std::make_shared<Meeting>();
    meeting->parts.resize(context.world_ranks.size());
    meeting->kind = kind;
    meeting->type = type;
    meeting->root = root;
    meeting->world_ranks = context.world_ranks;
  }
  assert(meeting->kind == kind && meeting->root == root);
  meeting->parts[static_cast<size_t>(comm->rank)] = std::move(part);
  ++meeting->come;
  now->requests.push_back(std::make_shared<Request>(Request{meeting}));
  *request = HandleOf(now->requests.back().get());
  return 0;
}

int Test(MpiHandle* request, int* done, MpiStatus*) {
  std::lock_guard lock(now->mutex);
  if (const int error = Fails("Test")) return error;
  Meeting& meeting = *Of<Request>(*request)->meeting;
  if (!meeting.is_done && !now->is_held && meeting.come == meeting.parts.size()) {
    Execute(meeting);
  }
  *done = meeting.is_done ? 1 : 0;
  return meeting.is_done ? meeting.error : 0;
}

int Initialized(int* flag) {
  *flag = 1;
  return 0;
}
int Finalized(int* flag) {
  *flag = 0;
  return 0;
}
int ErrorString(int error, char* text, int* length) {
  const std::string words = error == kTruncated ? "message truncated" : "an injected error";
  std::memcpy(text, words.c_str(), words.size() + 1);
  *length = static_cast<int>(words.size());
  return 0;
}
int CommRank(MpiHandle comm, int* rank) {
  *rank = Of<Comm>(comm)->rank;
  return 0;
}
int CommSize(MpiHandle comm, int* size) {
  *size = static_cast<int>(Of<Comm>(comm)->context->world_ranks.size());
  return 0;
}
int CommGroup(MpiHandle comm, MpiHandle* group) {
  *group = HandleOf(new Group{Of<Comm>(comm)->context->world_ranks});
  return 0;
}
int GroupIncl(MpiHandle group, int count, const int* ranks, MpiHandle* out) {
  auto* const part = new Group;
  for (int i = 0; i < count; ++i) {
    part->world_ranks.push_back(Of<Group>(group)->world_ranks[static_cast<size_t>(ranks[i])]);
  }
  *out = HandleOf(part);
  return 0;
}
int GroupFree(MpiHandle* group) {
  delete Of<Group>(*group);
  *group = 0;
  return 0;
}

// Blocks until all ranks of the group have called, as MPI does.
int CommCreateGroup(MpiHandle parent, MpiHandle group, int, MpiHandle* out) {
  std::unique_lock lock(now->mutex);
  MpiDouble::State* const state = now;
  if (const int error = Fails("Comm_create_group")) return error;
  Comm* const comm = Of<Comm>(parent);
  const std::vector<int> ranks = Of<Group>(group)->world_ranks;
  const auto key = std::make_pair(comm->context.get(), ranks);
  std::shared_ptr<Making>& entry = state->making[key];
  if (entry == nullptr) entry = std::make_shared<Making>();
  const std::shared_ptr<Making> making = entry;
  if (++making->come == ranks.size()) {
    making->context = MakeContext(ranks);
    state->making.erase(key);
    state->changed.notify_all();
  }
  state->changed.wait(lock, [&] { return making->context != nullptr; });
  const int self = comm->context->world_ranks[static_cast<size_t>(comm->rank)];
  int rank = 0;
  while (ranks[static_cast<size_t>(rank)] != self) ++rank;
  *out = HandleOf(MakeComm(making->context, rank));
  return 0;
}

int CommTestInter(MpiHandle, int* flag) {
  *flag = 0;
  return 0;
}
int CommSetErrhandler(MpiHandle, MpiHandle) { return 0; }
int CommFree(MpiHandle* comm) {
  std::lock_guard lock(now->mutex);
  [[maybe_unused]] const size_t freed = now->living.erase(Of<Comm>(*comm));
  assert(freed == 1);
  delete Of<Comm>(*comm);
  *comm = 0;
  return 0;
}
int CommIdup(MpiHandle comm, MpiHandle* out, MpiHandle* request) {
  return Begin("Comm_idup", comm, Kind::kDuplicate, 0, 0, {nullptr, out, 0, {}}, request);
}
int Ibcast(void* data, int count, MpiHandle type, int root, MpiHandle comm, MpiHandle* request) {
  const size_t bytes = static_cast<size_t>(count) * SizeOfType(type);
  return Begin("Ibcast", comm, Kind::kBroadcast, type, root, {nullptr, data, bytes, {}}, request);
}
int Iallreduce(const void* in, void* out, int count, MpiHandle type, MpiHandle, MpiHandle comm,
               MpiHandle* request) {
  const size_t bytes = static_cast<size_t>(count) * SizeOfType(type);
  return Begin("Iallreduce", comm, Kind::kAllreduce, type, 0, {in, out, bytes, {}}, request);
}
int IreduceScatter(const void* in, void* out, const int counts[], MpiHandle type, MpiHandle,
                   MpiHandle comm, MpiHandle* request) {
  int size = 0;
  CommSize(comm, &size);
  Meeting::Part part = {in, out, 0, {counts, counts + size}};
  for (const int count : part.counts) part.bytes += static_cast<size_t>(count) * SizeOfType(type);
  return Begin("Ireduce_scatter", comm, Kind::kReducescatter, type, 0, std::move(part), request);
}
int Iallgather(const void* in, int count, MpiHandle type, void* out, int, MpiHandle, MpiHandle comm,
               MpiHandle* request) {
  const size_t bytes = static_cast<size_t>(count) * SizeOfType(type);
  return Begin("Iallgather", comm, Kind::kAllgather, type, 0, {in, out, bytes, {}}, request);
}

MpiFunctions Functions() {
  MpiFunctions functions = {};
  functions.Initialized = Initialized;
  functions.Finalized = Finalized;
  functions.Error_string = ErrorString;
  functions.Comm_rank = CommRank;
  functions.Comm_size = CommSize;
  functions.Comm_group = CommGroup;
  functions.Group_incl = GroupIncl;
  functions.Group_free = GroupFree;
  functions.Comm_create_group = CommCreateGroup;
  functions.Comm_test_inter = CommTestInter;
  functions.Comm_idup = CommIdup;
  functions.Comm_set_errhandler = CommSetErrhandler;
  functions.Comm_free = CommFree;
  functions.Ibcast = Ibcast;
  functions.Iallreduce = Iallreduce;
  functions.Ireduce_scatter = IreduceScatter;
  functions.Iallgather = Iallgather;
  functions.Test = Test;
  return functions;
}

MpiHandles Handles() {
  MpiHandles handles;
  handles.comm_null = kConstants.comm_null.value;
  handles.byte = kConstants.byte.value;
  handles.int32 = kConstants.int32.value;
  handles.float32 = kConstants.float32.value;
  handles.sum = kConstants.sum.value;
  return handles;
}

}  // namespace

MpiDouble::MpiDouble(int size) : state_(new State) {
  static auto* const all = new std::vector<State*>;  // reachable for the leak checker
  all->push_back(state_);
  now = state_;
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  const auto context = MakeContext(std::move(ranks));
  for (int rank = 0; rank < size; ++rank) state_->world.push_back(MakeComm(context, rank));
  library_ = std::make_unique<MpiLibrary>(Functions(), kConstants, Handles());
}

MpiDouble::~MpiDouble() {
  // Ranks that keep a communicator also keep its library.
  MpiLibrary::Keep(std::move(library_));
}

const MpiLibrary& MpiDouble::library() const { return *library_; }

MpiHandle MpiDouble::World(int rank) const {
  return HandleOf(state_->world[static_cast<size_t>(rank)]);
}

void MpiDouble::Hold() {
  std::lock_guard lock(state_->mutex);
  state_->is_held = true;
}

void MpiDouble::Release() {
  std::lock_guard lock(state_->mutex);
  state_->is_held = false;
}

void MpiDouble::FailNext(const std::string& function) {
  std::lock_guard lock(state_->mutex);
  state_->failing.insert(function);
}

int MpiDouble::living() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->living.size() - state_->world.size());
}

int MpiDouble::begun() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->requests.size());
}

}  // namespace horoscale::testing
