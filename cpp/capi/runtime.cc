// hs_init to hs_get_topology, process sets, shared memory, timeline, metrics.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "handles.h"
#include "platform/joined_memory.h"

namespace horoscale {
namespace {

std::atomic<int> fork_count{0};

void WatchForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  (void)registered;
}

template <typename T>
std::optional<T> Given(T value) {
  return value < 0 ? std::nullopt : std::optional<T>(value);
}

JobOptions OptionsOf(const hs_init_options* given) {
  JobOptions options;
  if (given == nullptr) return options;
  options.rank = Given(given->rank);
  options.size = Given(given->size);
  if (given->rendezvous != nullptr) options.rendezvous = given->rendezvous;
  if (given->serve_rendezvous >= 0) options.served = given->serve_rendezvous == 0;
  if (given->secret != nullptr) options.secret = given->secret;
  if (given->num_ranks > 0) options.ranks.assign(given->ranks, given->ranks + given->num_ranks);
  options.mpi_comm = static_cast<horoscale::MpiHandle>(given->mpi_comm);
  options.view = given->view;
  return options;
}

// Copies as many values as fit and stores their total number.
void CopyOut(const std::vector<int>& values, int32_t* out, int32_t capacity, int32_t* count) {
  const int32_t room = out == nullptr ? 0 : std::max(capacity, 0);
  const auto fitting = std::min(values.size(), static_cast<size_t>(room));
  std::copy_n(values.begin(), fitting, out);
  *count = static_cast<int32_t>(values.size());
}

}  // namespace

int ForkCount() { return fork_count.load(std::memory_order_relaxed); }

Status CheckAlive(const hs_runtime* runtime) {
  if (runtime == nullptr) return {StatusCode::kNotInitialized, "the runtime is not initialized"};
  if (runtime->forks != ForkCount()) {
    return {StatusCode::kNotInitialized,
            "this process was forked after initialization: the runtime belongs to its parent"};
  }
  return Status::Ok();
}

}  // namespace horoscale

using horoscale::CheckAlive;
using horoscale::CheckGiven;
using horoscale::Status;
using horoscale::ToCode;

hs_code hs_init(const hs_init_options* options, hs_runtime** out) {
  if (Status status = CheckGiven(out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (options != nullptr) {
    const Status known =
        horoscale::CheckSize("hs_init_options", options->struct_size, sizeof(hs_init_options));
    if (!known.ok()) return ToCode(known);
  }
  horoscale::WatchForks();
  auto job = horoscale::Job::Join(horoscale::OptionsOf(options));
  if (!job.ok()) return ToCode(job.status());
  *out = new hs_runtime{job.TakeValue(), horoscale::ForkCount()};
  return HS_OK;
}

hs_code hs_shutdown(hs_runtime* runtime) { return hs_shutdown_failed(runtime, ""); }

hs_code hs_shutdown_failed(hs_runtime* runtime, const char* reason) {
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  runtime->job->Shutdown(reason == nullptr ? "" : reason);
  return HS_OK;
}

void hs_runtime_free(hs_runtime* runtime) {
  // In a forked child, its threads do not exist and its locks may be held forever: do not touch it.
  if (CheckAlive(runtime).ok()) delete runtime;
}

hs_code hs_get_topology(hs_runtime* runtime, hs_topology* out) {
  if (Status status = CheckGiven(out); !status.ok()) return ToCode(status);
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  const horoscale::Topology& topology = runtime->job->runtime().topology();
  *out = {topology.rank,       topology.size,       topology.local_rank, topology.local_size,
          topology.cross_rank, topology.cross_size, topology.homogeneous};
  return HS_OK;
}

int32_t hs_over_mpi(const hs_runtime* runtime) {
  return CheckAlive(runtime).ok() && runtime->job->over_mpi() ? 1 : 0;
}

hs_code hs_use_communicator(hs_runtime* runtime, const int32_t* ranks, int32_t num_ranks,
                            uint64_t mpi_comm) {
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  if (ranks == nullptr || num_ranks < 1) {
    return ToCode(Status::InvalidArgument("a process set needs at least one rank"));
  }
  return ToCode(runtime->job->runtime().UseCommunicator(
      {ranks, ranks + num_ranks}, static_cast<horoscale::MpiHandle>(mpi_comm)));
}

hs_code hs_process_sets(hs_runtime* runtime, int32_t* ids, int32_t capacity, int32_t* count) {
  if (Status status = CheckGiven(count); !status.ok()) return ToCode(status);
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  horoscale::CopyOut(runtime->job->runtime().ProcessSetIds(), ids, capacity, count);
  return HS_OK;
}

hs_code hs_process_set_ranks(hs_runtime* runtime, int32_t id, int32_t* ranks, int32_t capacity,
                             int32_t* count) {
  if (Status status = CheckGiven(count); !status.ok()) return ToCode(status);
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  const auto members = runtime->job->runtime().ProcessSetRanks(id);
  if (!members) {
    return ToCode(Status::InvalidArgument("there is no process set " + std::to_string(id)));
  }
  horoscale::CopyOut(*members, ranks, capacity, count);
  return HS_OK;
}

hs_code hs_shared_alloc(hs_runtime* runtime, size_t bytes, void** out) {
  if (Status status = CheckGiven(out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  const auto memory = runtime->job->runtime().AllocateShared(bytes);
  if (!memory.ok()) return ToCode(memory.status());
  *out = *memory;
  return HS_OK;
}

void hs_shared_free(hs_runtime* runtime, void* memory) {
  if (memory == nullptr || !CheckAlive(runtime).ok()) return;
  runtime->job->runtime().FreeShared(static_cast<std::byte*>(memory));
}

hs_code hs_shared_offset(hs_runtime* runtime, const void* memory, size_t bytes, int64_t* offset) {
  if (Status status = CheckGiven(offset); !status.ok()) return ToCode(status);
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  *offset = runtime->job->runtime().SharedOffset(static_cast<const std::byte*>(memory), bytes);
  return HS_OK;
}

hs_code hs_shared_join(hs_runtime* runtime, const int32_t* ranks, const int64_t* offsets,
                       int32_t count, size_t bytes, void** out) {
  if (Status status = CheckGiven(out); !status.ok()) return ToCode(status);
  *out = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  if (ranks == nullptr || offsets == nullptr || count < 1) {
    return ToCode(Status::InvalidArgument("joining shared memory needs at least one rank"));
  }
  const auto pieces = static_cast<size_t>(count);
  const auto joined = runtime->job->runtime().JoinShared({ranks, pieces}, {offsets, pieces}, bytes);
  if (!joined.ok()) return ToCode(joined.status());
  *out = *joined;
  return HS_OK;
}

hs_code hs_shared_leave(void* joined, size_t total_bytes) {
  return ToCode(horoscale::LeaveMemory(static_cast<std::byte*>(joined), total_bytes));
}

void hs_shared_unjoin(void* joined, size_t total_bytes) {
  if (joined != nullptr) horoscale::UnmapMemory(static_cast<std::byte*>(joined), total_bytes);
}

hs_code hs_timeline_start(hs_runtime* runtime, const char* path, int32_t mark_cycles) {
  if (Status status = CheckGiven(path); !status.ok()) return ToCode(status);
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  return ToCode(runtime->job->runtime().StartTimeline(path, mark_cycles != 0));
}

hs_code hs_timeline_stop(hs_runtime* runtime) {
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  return ToCode(runtime->job->runtime().StopTimeline());
}

hs_code hs_metrics(hs_runtime* runtime, char** json) {
  if (Status status = CheckGiven(json); !status.ok()) return ToCode(status);
  *json = nullptr;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  *json = strdup(runtime->job->runtime().MetricsJson().c_str());
  return HS_OK;
}

hs_code hs_waiting_seconds(hs_runtime* runtime, double* seconds) {
  if (Status status = CheckGiven(seconds); !status.ok()) return ToCode(status);
  *seconds = 0;
  if (Status status = CheckAlive(runtime); !status.ok()) return ToCode(status);
  *seconds = runtime->job->runtime().WaitingSeconds();
  return HS_OK;
}
