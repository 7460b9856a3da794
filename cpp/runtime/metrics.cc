#include "runtime/metrics.h"

#include <cmath>

#include "base/encoding.h"
#include "runtime/json.h"
#include "transport/mpi/mpi_communicator.h"

namespace horoscale {

namespace {

// Of each lossy encoding that was used.
std::string EncodingsOf(const SetCounters& counters) {
  JsonObject encodings;
  for (int kind = 0; kind < kNumEncodingKinds; ++kind) {
    const EncodingTotals& totals = counters.encoded[static_cast<size_t>(kind)];
    if (totals.calls == 0) continue;
    const double error = totals.squares > 0 ? std::sqrt(totals.error_squares / totals.squares) : 0;
    encodings.AddJson(Name(static_cast<EncodingKind>(kind)),
                      JsonObject()
                          .Add("calls", totals.calls)
                          .Add("bytes_before", totals.bytes_before)
                          .Add("bytes_after", totals.bytes_after)
                          .Add("relative_error", error)
                          .Build());
  }
  return encodings.Build();
}

// Adaptive tensors that were sent between hosts.
std::string AdaptedOf(const SetCounters& counters) {
  JsonObject tensors;
  for (const AdaptedTensor& tensor : counters.adapted.tensors()) {
    const double ratio = tensor.bytes_after == 0 ? 1
                                                 : static_cast<double>(tensor.bytes_before) /
                                                       static_cast<double>(tensor.bytes_after);
    tensors.AddJson(*tensor.name, JsonObject()
                                      .Add("encoding", Name(tensor.encoding))
                                      .Add("changes", uint64_t{tensor.changes})
                                      .Add("bytes_before", tensor.bytes_before)
                                      .Add("bytes_after", tensor.bytes_after)
                                      .Add("ratio", ratio)
                                      .Add("relative_error", tensor.relative_error)
                                      .Build());
  }
  return tensors.Build();
}

// Members that were the last to report something.
std::string LateRanksJson(const std::vector<std::pair<int, Lateness::Member>>& late) {
  JsonObject ranks;
  for (const auto& [rank, member] : late) {
    ranks.AddJson(
        std::to_string(rank),
        JsonObject().Add("operations", member.operations).Add("seconds", member.seconds).Build());
  }
  return ranks.Build();
}

std::string CountersJson(const Metrics::Set& set) {
  const SetCounters& counters = set.counters;
  return JsonObject()
      .Add("operations", counters.operations)
      .Add("bytes", counters.bytes)
      .Add("buckets", counters.buckets)
      .Add("mpi_buckets", counters.mpi_buckets)
      .Add("device_buckets", counters.device_buckets)
      .Add("nccl_buckets", counters.nccl_buckets)
      .Add("fused_tensors", counters.fused_tensors)
      .Add("cache_hits", counters.cache_hits)
      .Add("cache_misses", counters.cache_misses)
      .Add("one_hop", counters.posts)
      .Add("messages_sent", counters.messages_sent)
      .Add("messages_received", counters.messages_received)
      .Add("messages_viewed", counters.messages_viewed)
      .Add("nccl_messages", counters.nccl_messages)
      .Add("message_bytes_sent", counters.message_bytes_sent)
      .Add("message_bytes_received", counters.message_bytes_received)
      .AddJson("encodings", EncodingsOf(counters))
      .AddJson("adaptive", AdaptedOf(counters))
      .Add("negotiate_seconds", counters.negotiate_seconds)
      .Add("execute_seconds", counters.execute_seconds)
      .AddJson("late_ranks", LateRanksJson(set.late))
      .Build();
}

std::string ProgressJson(const SetProgress& progress) {
  return JsonObject()
      .Add("last_operation", progress.last_operation)
      .Add("executing", progress.executing)
      .Add("pending", static_cast<uint64_t>(progress.pending))
      .Add("pending_operation", progress.pending_operation)
      .Add("pending_seconds", progress.pending_seconds)
      .Build();
}

std::vector<std::pair<int, Lateness::Member>> LateMembersOf(const ProcessSet& set) {
  std::vector<std::pair<int, Lateness::Member>> late;
  const std::vector<Lateness::Member>& members = set.Late();
  for (size_t member = 0; member < members.size(); ++member) {
    if (members[member].operations > 0) late.emplace_back(set.ranks()[member], members[member]);
  }
  return late;
}

}  // namespace

void CopyMetrics(const std::map<uint32_t, std::shared_ptr<ProcessSet>>& sets,
                 const Transport& transport, double now, Metrics* metrics) {
  metrics->sets.resize(sets.size());
  auto copy = metrics->sets.begin();
  for (const auto& [id, set] : sets) {
    copy->id = id;
    copy->counters = set->counters();
    copy->progress = set->Progress(now);
    copy->late = LateMembersOf(*set);
    ++copy;
  }
  metrics->transported = transport.counters();
  metrics->link_bytes = transport.LinkBytes();
}

std::string MetricsJson(const Metrics& metrics) {
  JsonObject counted;
  JsonObject progressing;
  for (const Metrics::Set& set : metrics.sets) {
    counted.AddJson(std::to_string(set.id), CountersJson(set));
    progressing.AddJson(std::to_string(set.id), ProgressJson(set.progress));
  }
  JsonObject links;
  for (const auto& [rank, bytes] : metrics.link_bytes) links.Add(std::to_string(rank), bytes);
  const TransportCounters& transported = metrics.transported;
  return JsonObject()
      .Add("waiting_seconds", metrics.waiting_seconds)
      .AddJson("steps", JsonObject()
                            .Add("count", metrics.steps.steps)
                            .Add("seconds", metrics.steps.seconds)
                            .Add("exposed_seconds", metrics.steps.exposed_seconds)
                            .Add("waiting_seconds", metrics.steps.waiting_seconds)
                            .Build())
      .AddJson("process_sets", counted.Build())
      .AddJson("progress", progressing.Build())
      .Add("control_frames_sent", transported.control_frames_sent)
      .Add("control_frames_received", transported.control_frames_received)
      .Add("control_bytes_sent", transported.control_bytes_sent)
      .Add("socket_frames_sent", transported.socket_frames_sent)
      .Add("data_bytes_sent", transported.data_bytes_sent)
      .Add("network_bytes_sent", transported.network_bytes_sent)
      .AddJson("link_bytes_sent", links.Build())
      .Add("doorbells_rung", transported.doorbells_rung)
      .Add("mpi_communicators", static_cast<uint64_t>(MpiCommunicator::Living()))
      .Add("metrics_copies", metrics.cost.copies)
      .Add("metrics_seconds", metrics.cost.seconds)
      .Build();
}

}  // namespace horoscale
