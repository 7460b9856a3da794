#include "runtime/config.h"

#include <charconv>
#include <cmath>

#include "base/names.h"
#include "core/codec.h"
#include "transport/message/message_exchange.h"

namespace horoscale {
namespace {

template <typename Number>
bool ParseNumber(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseCount(std::string_view text, int64_t* out) { return ParseNumber(text, out) && *out >= 0; }

bool ParseSeconds(std::string_view text, double* out) {
  return ParseNumber(text, out) && std::isfinite(*out) && *out >= 0;
}

bool ParseLogLevel(std::string_view text, LogLevel* out) {
  static constexpr std::string_view kNames[] = {"trace", "debug", "info", "warning",
                                                "error", "fatal", "off"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text == kNames[i]) {
      *out = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

// A switch that the core does not use.
bool IgnoreSwitch(std::string_view text, Config*) {
  bool ignored = false;
  return ParseSwitch(text, &ignored);
}

constexpr ConfigVariable kVariables[] = {
    {"FUSION_THRESHOLD", "bytes", "134217728",
     "Upper limit of the size of fused buckets: tensors that are ready at the same time are "
     "executed together. 0: no fusion.",
     [](std::string_view t, Config* c) { return ParseCount(t, &c->fusion_threshold_bytes); }},
    {"PARTITION_BYTES", "bytes", "16777216",
     "Larger tensors are split into parts of this size, so that tensors of higher priority can "
     "overtake them. 0: tensors are not split.",
     [](std::string_view t, Config* c) { return ParseCount(t, &c->partition_bytes); }},
    {"CREDIT_BYTES", "bytes", "67108864",
     "How many bytes may be scheduled ahead of their execution. A smaller value lets urgent "
     "tensors overtake earlier. One operation may always run.",
     [](std::string_view t, Config* c) { return ParseCount(t, &c->credit_bytes); }},
    {"PACE_SECONDS", "seconds", "0.012",
     "How long a bucket may take on a slow network between hosts, because an urgent tensor waits "
     "for it. Buckets and parts contain at most what the network recently carried in this time, "
     "and at least 128 KiB. Where each bucket has a high latency, they may take four times the "
     "latency. 0: no limit.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->pace_seconds); }},
    {"SCHEDULER", "priority | fifo", "priority",
     "The order of ready tensors: by priority, or first in, first out.",
     [](std::string_view t, Config* c) {
       c->priority_scheduling = t == "priority";
       return t == "priority" || t == "fifo";
     }},
    {"JOIN_AVERAGE", "size | participants", "size",
     "The divisor of Average after ranks have called join(): the number of all ranks, so that "
     "every sample has the same weight, or of the ranks that still participate. Rank 0's value "
     "applies to all ranks.",
     [](std::string_view t, Config* c) {
       c->average_over_participants = t == "participants";
       return t == "size" || t == "participants";
     }},
    {"ADASUM_START_LEVEL", "count", "1",
     "So many ranks average their values before op=Adasum combines the averages: 0 to n-1, n to "
     "2n-1, and so on. 1: Adasum of all ranks; the number of ranks on each host: Adasum of hosts. "
     "The same on all ranks, 32768 at most.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->adasum_start_level) && c->adasum_start_level >= 1 &&
              c->adasum_start_level <= 32768;
     }},
    {"AUTOTUNE", "switch", "0",
     "Searches for the fastest FUSION_THRESHOLD, PARTITION_BYTES, CREDIT_BYTES and PACE_SECONDS "
     "while the job runs, for at most a few hundred steps, beginning with those that a cost model "
     "predicts. The result is not slower than the initial values (docs/tuning.md).",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->autotune); }},
    {"AUTOTUNE_LOG", "path", "",
     "CSV file in which AUTOTUNE logs what it predicts, tries and chooses, and each change of the "
     "pace and of adaptive compression. Ranks above 0, which tune process sets without rank 0, "
     "append `.rank<N>`.",
     [](std::string_view t, Config* c) {
       c->autotune_log_path = t;
       return true;
     }},
    {"CACHE_CAPACITY", "count", "1024",
     "Capacity of the response cache: the number of operations per process set whose descriptions "
     "are cached, so that repeating one costs a few bits. 0 disables the cache.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->cache_capacity) && c->cache_capacity <= 1'000'000;
     }},
    {"ONE_HOP_BYTES", "bytes", "8192",
     "Repeated blocking allreduces of at most this size, and barriers, take one hop: every rank, "
     "or every host, sends its values to every other one without a plan. Applies to process sets "
     "of up to 16 hosts with 16 ranks each, and to [smaller allreduces](protocol.md#one-hop) with "
     "many hosts. At most 65536. 0: the set's coordinator plans every operation.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->one_hop_bytes) &&
              c->one_hop_bytes <= static_cast<int64_t>(kMaxPostBytes);
     }},
    {"BACKEND", "auto | native | mpi | nccl", "auto",
     "How data is transferred. native: shared memory within a host and TCP between hosts; CUDA "
     "tensors go through host memory. mpi: MPI messages. nccl: as auto, but CUDA tensors for which "
     "NCCL is unavailable are an error. auto: MPI if MPI started the ranks on several hosts, "
     "otherwise native; CUDA tensors use NCCL if it is available.",
     [](std::string_view t, Config* c) {
       c->backend = t == "mpi"      ? BackendChoice::kMpi
                    : t == "native" ? BackendChoice::kNative
                    : t == "nccl"   ? BackendChoice::kNccl
                                    : BackendChoice::kAuto;
       return t == "auto" || t == "native" || t == "mpi" || t == "nccl";
     }},
    {"DEVICE_FUSION", "grouped | buffer", "grouped",
     "How CUDA tensors that are reduced together are passed to NCCL: in place, as one group of "
     "calls, or copied into one fusion buffer on the device.",
     [](std::string_view t, Config* c) {
       c->device_fusion_buffer = t == "buffer";
       return t == "grouped" || t == "buffer";
     }},
    {"DETERMINISTIC", "switch", "",
     "1: use only algorithms whose sums are bitwise identical in every run with the same ranks on "
     "each host. If unset, this holds too, except for sums that are computed by MPI's own "
     "collectives.",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->deterministic_asked); }},
    {"CYCLE_TIME", "milliseconds", "0",
     "Accepted for compatibility; no effect: the engine is event-driven.",
     [](std::string_view t, Config*) {
       double ignored = 0;
       return ParseSeconds(t, &ignored);
     }},
    {"HIERARCHICAL_ALLREDUCE", "switch", "1",
     "Accepted for compatibility; no effect: sums are always computed within hosts first, because "
     "the order affects their rounding.",
     IgnoreSwitch},
    {"HIERARCHICAL_ALLGATHER", "switch", "1",
     "Accepted for compatibility; no effect: each row is always sent only once between two hosts.",
     IgnoreSwitch},
    {"DYNAMIC_PROCESS_SETS", "switch", "0",
     "Allows add_process_set() and remove_process_set() after init.",
     IgnoreSwitch /* the binding reads it */},
    {"GRADIENTS_READY", "step | backward", "step",
     "When gradients have been averaged, for PyTorch's DistributedOptimizer without "
     "gradients_ready=: in step(), or when backward() returns (docs/torch.md).",
     [](std::string_view t, Config*) { return t == "step" || t == "backward" || t.empty(); }},
    {"STALL_CHECK_DISABLE", "switch", "0", "1: disable stall reports.",
     [](std::string_view t, Config* c) {
       bool disabled = false;
       const bool ok = ParseSwitch(t, &disabled);
       c->stall_check = !disabled;
       return ok;
     }},
    {"STALL_CHECK_TIME_SECONDS", "seconds", "60",
     "An operation that some ranks have not called after this time is reported, with those ranks.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->stall_warning_seconds); }},
    {"STALL_SHUTDOWN_TIME_SECONDS", "seconds", "0",
     "After this time, such an operation fails, together with its process set. 0: no limit.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->stall_shutdown_seconds); }},
    {"STATE_SIGNAL", "switch", "1",
     "On SIGUSR2, a rank writes to standard error what it is waiting for, unless the process has "
     "its own handler for this signal. 0: horoscale does not handle the signal.",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->state_signal); }},
    {"START_TIMEOUT", "seconds", "30", "How long init() waits for the other ranks.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->start_timeout_seconds); }},
    {"TIMELINE", "path", "",
     "Writes a Chrome trace of all operations to this file; ranks above 0 append `.rank<N>`.",
     [](std::string_view t, Config* c) {
       c->timeline_path = t;
       return true;
     }},
    {"TIMELINE_MARK_CYCLES", "switch", "0", "1: mark every executed plan entry in the timeline.",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->timeline_mark_cycles); }},
    {"LOG_LEVEL", "trace | debug | info | warning | error | fatal | off", "warning",
     "The lowest level of messages that are written to standard error.",
     [](std::string_view t, Config* c) { return ParseLogLevel(t, &c->log_level); }},
    {"LOG_HIDE_TIME", "switch", "0", "1: omit the time from log lines.",
     [](std::string_view t, Config* c) {
       bool hidden = false;
       const bool ok = ParseSwitch(t, &hidden);
       c->log_time = !hidden;
       return ok;
     }},
    {"ARENA_BYTES", "bytes", "68719476736",
     "Size of the address space that each rank reserves for memory shared with the ranks of its "
     "host. Only pages that are touched use memory.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->arena_bytes) && c->arena_bytes >= (int64_t{16} << 20);
     }},
    {"RANK", "count", "", "This process' rank; set by the launcher.", nullptr},
    {"SIZE", "count", "", "The number of ranks; set by the launcher.", nullptr},
    {"CONTROLLER", "mpi | gloo", "",
     "How the ranks connect to each other: over MPI, or over the job's own store; set by the "
     "launcher. Default: MPI if an MPI launcher (mpirun, srun) started the process.",
     nullptr},
    {"LIBMPI", "path", "", "The MPI library to open if the process has not loaded one already.",
     nullptr},
    {"LIBNCCL", "path", "", "The NCCL library to open if the process has not loaded one already.",
     nullptr},
    {"LIBCUDA", "path", "",
     "The NVIDIA driver library to open if the process has not loaded it already.", nullptr},
    {"HOSTNAME", "text", "",
     "The name of the host. Ranks with the same name share memory if they can; otherwise they "
     "count as being on different hosts. Default: host name and boot ID.",
     nullptr},
    {"NETWORK_INTERFACE", "names", "",
     "Comma-separated network interfaces for connections between the hosts of a job. A rank "
     "listens only on these. Empty: all interfaces, starting with the one that reaches the "
     "rendezvous; or only loopback, if all ranks reach the rendezvous through it.",
     [](std::string_view t, Config* c) {
       c->network_interfaces = SplitNames(t);
       return true;
     }},
    {"NETWORK_TIMEOUT_SECONDS", "seconds", "30",
     "The time without any response from a host after which its ranks are considered lost; at "
     "least 5. With 10 or more, an interruption of less than a fifth of this time is harmless; "
     "below 10, a single lost packet may lose a rank. The kernel responds, so a stopped or busy "
     "process is not considered lost.",
     [](std::string_view t, Config* c) {
       return ParseSeconds(t, &c->silence_seconds) && c->silence_seconds >= 5 &&
              c->silence_seconds <= 86'400;
     }},
    {"TCP_STREAMS", "count", "0",
     "The number of TCP data connections between two ranks on different hosts, 1 to 4, in addition "
     "to the control connection. 0: 4 in jobs of up to 64 ranks, 2 in jobs of up to 128, and 1 in "
     "larger ones. Then only one of them is used while it transfers less than 200 MB/s or more "
     "than 1.5 GB/s; otherwise all are used.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->tcp_streams) && c->tcp_streams <= MessageExchange::kBanks;
     }},
    {"ENCRYPT", "switch", "0",
     "1: all traffic between hosts is encrypted with TLS 1.3, using the system's OpenSSL. All "
     "ranks must have the same setting. 0: traffic is authenticated, except for the values of "
     "tensors (docs/security.md).",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->encrypt); }},
    {"LIBSSL", "path", "",
     "The OpenSSL library (libssl) to open for ENCRYPT, version 1.1.1 or newer. Default: the one "
     "that the process has loaded already, else libssl.so.3 or libssl.so.1.1.",
     nullptr},
    {"RENDEZVOUS", "host:port", "",
     "The address of the job's key-value store. Without a launcher, rank 0 serves the store there.",
     nullptr},
    {"RENDEZVOUS_SERVED", "switch", "0",
     "1: another process, such as the launcher, serves the store. 0: rank 0 serves it.", nullptr},
    {"FULL_TRACEBACK", "switch", "0",
     "How horoscalerun shows tracebacks of ranks. 0: identical tracebacks once, without "
     "horoscale's own frames. 1: each as the rank printed it.",
     nullptr},
    {"SECRET", "text", "",
     "The job's secret, at least 128 bits (`openssl rand -hex 32`). If RENDEZVOUS is on loopback "
     "and all ranks run as the same user, none is needed: the ranks generate one "
     "(docs/security.md).",
     nullptr},
    {"SECRET_FILE", "path", "",
     "A file of at most 4096 bytes that contains the secret. It must be owned by this user or by "
     "root, and not be readable by others. If root owns it, root's group or one of this process's "
     "groups may read it.",
     nullptr},
};

}  // namespace

bool ParseSwitch(std::string_view text, bool* out) {
  *out = text == "1" || text == "true" || text == "True" || text == "yes" || text == "on";
  return *out || text == "0" || text == "false" || text == "False" || text == "no" ||
         text == "off" || text.empty();
}

std::span<const ConfigVariable> ConfigVariables() { return kVariables; }

Result<Config> ReadConfig(const VariableLookup& lookup) {
  Config config;
  for (const ConfigVariable& variable : kVariables) {
    if (variable.store == nullptr) continue;
    const auto found = lookup(variable.name);
    if (!found || variable.store(found->value, &config)) continue;
    return Status::InvalidArgument(found->name + "=\"" + found->value +
                                   "\" does not parse: expected " + std::string(variable.type));
  }
  return config;
}

}  // namespace horoscale
