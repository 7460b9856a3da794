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

// A switch that the core has no use for.
bool IgnoreSwitch(std::string_view text, Config*) {
  bool ignored = false;
  return ParseSwitch(text, &ignored);
}

constexpr ConfigVariable kVariables[] = {
    {"FUSION_THRESHOLD", "bytes", "134217728",
     "Tensors that are ready at the same time are executed together up to this size. 0: never.",
     [](std::string_view t, Config* c) { return ParseCount(t, &c->fusion_threshold_bytes); }},
    {"PARTITION_BYTES", "bytes", "16777216",
     "Larger tensors are cut into parts of this size, between which a more urgent tensor may "
     "overtake. 0: never.",
     [](std::string_view t, Config* c) { return ParseCount(t, &c->partition_bytes); }},
    {"CREDIT_BYTES", "bytes", "67108864",
     "How far the agreed order may run ahead of its execution. Less lets urgent tensors overtake "
     "earlier; one operation may always run.",
     [](std::string_view t, Config* c) { return ParseCount(t, &c->credit_bytes); }},
    {"SCHEDULER", "priority | fifo", "priority",
     "Which of the tensors that are ready goes first: the one of the highest priority, or the one "
     "that was ready first.",
     [](std::string_view t, Config* c) {
       c->priority_scheduling = t == "priority";
       return t == "priority" || t == "fifo";
     }},
    {"JOIN_AVERAGE", "size | participants", "size",
     "What an Average divides by once ranks have joined: all ranks, so that every sample weighs "
     "the "
     "same, or the ranks that still take part. Rank 0's value counts.",
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
     "Looks for the FUSION_THRESHOLD, PARTITION_BYTES and CREDIT_BYTES that make steps shortest, "
     "while the job runs, for some hundred steps at most. What it ends with is not slower than "
     "what "
     "it was given (docs/tuning.md).",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->autotune); }},
    {"AUTOTUNE_LOG", "path", "",
     "Where AUTOTUNE writes what it tries, as CSV; ranks above 0, which tune process sets without "
     "rank 0, append `.rank<N>`.",
     [](std::string_view t, Config* c) {
       c->autotune_log_path = t;
       return true;
     }},
    {"CACHE_CAPACITY", "count", "1024",
     "Operations per process set whose description is remembered, so that repeating one costs a "
     "few bits. 0 turns the cache off.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->cache_capacity) && c->cache_capacity <= 1'000'000;
     }},
    {"ONE_HOP_BYTES", "bytes", "8192",
     "Blocking allreduces of at most so many bytes, and barriers, take one hop where they repeat: "
     "every rank sends its values to every other one, or every host to every other one, without a "
     "plan. On process sets of up to 16 hosts with 16 ranks each; "
     "[less](protocol.md#one-hop) with many hosts. 65536 at most; 0: everything is planned by the "
     "set's coordinator.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->one_hop_bytes) &&
              c->one_hop_bytes <= static_cast<int64_t>(kMaxPostBytes);
     }},
    {"BACKEND", "auto | native | mpi | nccl", "auto",
     "What carries the ranks' data: our own transports, which are shared memory in a host and TCP "
     "between hosts, or MPI's messages. auto: our own, and MPI where it started ranks on several "
     "hosts. CUDA tensors go through NCCL where it can be used; nccl: else they are an error; "
     "native: they always go through host memory.",
     [](std::string_view t, Config* c) {
       c->backend = t == "mpi"      ? BackendChoice::kMpi
                    : t == "native" ? BackendChoice::kNative
                    : t == "nccl"   ? BackendChoice::kNccl
                                    : BackendChoice::kAuto;
       return t == "auto" || t == "native" || t == "mpi" || t == "nccl";
     }},
    {"DEVICE_FUSION", "grouped | buffer", "grouped",
     "How CUDA tensors that are reduced together reach NCCL: as one group of calls on the tensors "
     "themselves, or copied into one buffer on the device.",
     [](std::string_view t, Config* c) {
       c->device_fusion_buffer = t == "buffer";
       return t == "grouped" || t == "buffer";
     }},
    {"DETERMINISTIC", "switch", "",
     "1: only algorithms whose sums have the same bits on every run with the same ranks on each "
     "host. Where it is left out, that holds too, except for sums that MPI's own collectives make.",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->deterministic_asked); }},
    {"CYCLE_TIME", "milliseconds", "0",
     "Accepted for compatibility and without effect: the engine is driven by events.",
     [](std::string_view t, Config*) {
       double ignored = 0;
       return ParseSeconds(t, &ignored);
     }},
    {"HIERARCHICAL_ALLREDUCE", "switch", "1",
     "Accepted for compatibility and without effect: sums are always made in the hosts first, and "
     "their bits would depend on it.",
     IgnoreSwitch},
    {"HIERARCHICAL_ALLGATHER", "switch", "1",
     "Accepted for compatibility and without effect: rows always cross between two hosts once.",
     IgnoreSwitch},
    {"DYNAMIC_PROCESS_SETS", "switch", "0",
     "Allows add_process_set() and remove_process_set() after init.",
     IgnoreSwitch /* the binding reads it */},
    {"GRADIENTS_READY", "step | backward", "step",
     "When gradients are averages, for PyTorch's DistributedOptimizer without gradients_ready: in "
     "step(), or when backward() returns (docs/torch.md).",
     [](std::string_view t, Config*) { return t == "step" || t == "backward" || t.empty(); }},
    {"STALL_CHECK_DISABLE", "switch", "0", "Turns the reports about missing ranks off.",
     [](std::string_view t, Config* c) {
       bool disabled = false;
       const bool ok = ParseSwitch(t, &disabled);
       c->stall_check = !disabled;
       return ok;
     }},
    {"STALL_CHECK_TIME_SECONDS", "seconds", "60",
     "After this time an operation that some ranks still miss is reported, with their names.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->stall_warning_seconds); }},
    {"STALL_SHUTDOWN_TIME_SECONDS", "seconds", "0",
     "After this time such an operation fails, and with it its process set. 0: it waits for ever.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->stall_shutdown_seconds); }},
    {"STATE_SIGNAL", "switch", "1",
     "On SIGUSR2 a rank writes to standard error what it waits for, unless the process has its own "
     "handler of that signal. 0 leaves the signal alone.",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->state_signal); }},
    {"START_TIMEOUT", "seconds", "30", "How long init() waits for the other ranks.",
     [](std::string_view t, Config* c) { return ParseSeconds(t, &c->start_timeout_seconds); }},
    {"TIMELINE", "path", "",
     "Writes a Chrome trace of all operations to this file; ranks above 0 append `.rank<N>`.",
     [](std::string_view t, Config* c) {
       c->timeline_path = t;
       return true;
     }},
    {"TIMELINE_MARK_CYCLES", "switch", "0", "Marks every executed plan entry in the timeline.",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->timeline_mark_cycles); }},
    {"LOG_LEVEL", "trace | debug | info | warning | error | fatal | off", "warning",
     "What is written to standard error.",
     [](std::string_view t, Config* c) { return ParseLogLevel(t, &c->log_level); }},
    {"LOG_HIDE_TIME", "switch", "0", "Leaves the time out of log lines.",
     [](std::string_view t, Config* c) {
       bool hidden = false;
       const bool ok = ParseSwitch(t, &hidden);
       c->log_time = !hidden;
       return ok;
     }},
    {"ARENA_BYTES", "bytes", "68719476736",
     "Address space that each rank reserves for memory shared with the ranks of its host. Memory "
     "is used only where it is touched.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->arena_bytes) && c->arena_bytes >= (int64_t{16} << 20);
     }},
    {"RANK", "count", "", "This process' rank; set by the launcher.", nullptr},
    {"SIZE", "count", "", "The number of ranks; set by the launcher.", nullptr},
    {"CONTROLLER", "mpi | gloo", "",
     "How the ranks find each other: over MPI, or over the job's own store; set by the launcher. "
     "Default: MPI where an MPI launcher (mpirun, srun) started the process.",
     nullptr},
    {"LIBMPI", "path", "", "The MPI library to open where the process has not loaded one already.",
     nullptr},
    {"LIBNCCL", "path", "",
     "The NCCL library to open where the process has not loaded one already.", nullptr},
    {"LIBCUDA", "path", "",
     "The NVIDIA driver's library to open where the process has not loaded it already.", nullptr},
    {"HOSTNAME", "text", "",
     "Names the host: ranks with the same name share memory where they can, and are on several "
     "hosts where they can't. Default: host name and boot id.",
     nullptr},
    {"NETWORK_INTERFACE", "names", "",
     "Network interfaces between the hosts of a job, separated by commas; a rank listens on these "
     "alone. Empty: all, beginning with the one by which the rendezvous is reached; or loopback "
     "alone, where all ranks reach the rendezvous by it.",
     [](std::string_view t, Config* c) {
       c->network_interfaces = SplitNames(t);
       return true;
     }},
    {"NETWORK_TIMEOUT_SECONDS", "seconds", "30",
     "By when ranks count as lost whose host's machine gives no sign of life: 5 at least. From 10 "
     "on less than a fifth of it does no harm; below, one lost packet may. A process that is "
     "stopped, or busy, still gives one.",
     [](std::string_view t, Config* c) {
       return ParseSeconds(t, &c->silence_seconds) && c->silence_seconds >= 5 &&
              c->silence_seconds <= 86'400;
     }},
    {"TCP_STREAMS", "count", "0",
     "TCP connections that carry the data between two ranks of different hosts, 1 to 4, beside the "
     "one for control. 0: 4 in jobs of up to 64 ranks, 2 up to 128, 1 beyond, of which one is used "
     "where it carries less than 200 MB/s, or more than 1.5 GB/s; otherwise all are used.",
     [](std::string_view t, Config* c) {
       return ParseCount(t, &c->tcp_streams) && c->tcp_streams <= MessageExchange::kBanks;
     }},
    {"ENCRYPT", "switch", "0",
     "1: everything that crosses between hosts is encrypted, with TLS 1.3 by the system's OpenSSL. "
     "The same on all ranks. Otherwise it is authenticated, except for the values of tensors "
     "(docs/security.md).",
     [](std::string_view t, Config* c) { return ParseSwitch(t, &c->encrypt); }},
    {"LIBSSL", "path", "",
     "The OpenSSL library (libssl) to open for ENCRYPT, of version 1.1.1 or newer. Default: the "
     "one that the process has loaded, else libssl.so.3 or libssl.so.1.1.",
     nullptr},
    {"RENDEZVOUS", "host:port", "",
     "Where the job's key-value store is. Without a launcher rank 0 serves it there.", nullptr},
    {"RENDEZVOUS_SERVED", "switch", "0",
     "1: the store is served already (the launcher does so); 0: rank 0 serves it.", nullptr},
    {"FULL_TRACEBACK", "switch", "0",
     "What horoscalerun shows of the ranks' tracebacks. 0: one for all ranks whose are the same, "
     "without horoscale's own frames. 1: each as the rank printed it.",
     nullptr},
    {"SECRET", "text", "",
     "The job's secret, of 128 bits at least (openssl rand -hex 32). Where RENDEZVOUS is on "
     "loopback, and the ranks are one user's, none is needed: they make one (docs/security.md).",
     nullptr},
    {"SECRET_FILE", "path", "",
     "A file that holds the secret, of at most 4096 bytes. It is this user's or root's, and nobody "
     "else can read it; root's or one of this process' groups may, where root owns it.",
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
