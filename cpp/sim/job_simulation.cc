#include "sim/job_simulation.h"

#include <time.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/codec.h"

namespace horoscale::sim {
namespace {

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The processor time that something takes; 0 where it is not to be measured.
template <typename Function>
double Timed(bool measure, Function function) {
  const double begin = measure ? ProcessorSeconds() : 0;
  function();
  return measure ? ProcessorSeconds() - begin : 0;
}

CoordinatorOptions OptionsOf(const JobModel& model) {
  CoordinatorOptions options;
  options.ranks.resize(model.ranks);
  std::iota(options.ranks.begin(), options.ranks.end(), 0);
  options.cache_capacity = std::max<size_t>(options.cache_capacity, model.tensors);
  return options;
}

}  // namespace

JobSimulation::JobSimulation(const JobModel& model)
    : model_(model),
      options_(OptionsOf(model)),
      coordinator_(options_),
      nodes_(model.ranks),
      random_(model.seed) {
  const uint32_t members = model.own_members ? model.ranks : std::min(model.ranks, 2u);
  for (uint32_t i = 0; i < members; ++i) {
    members_.emplace_back(0, i, model.ranks, options_.cache_capacity);
  }
  reports_.resize(members);
}

Result<StepCost> JobSimulation::Step() {
  cost_ = {};
  for (Node& node : nodes_) {
    node = {};
    node.processor = model_.jitter_seconds * Random();
  }
  Submit();
  MakeReports();
  HS_RETURN_IF_ERROR(Collect(SendReports()));
  HS_RETURN_IF_ERROR(Publish());
  for (const Member& member : members_) {
    if (member.HasPending()) return Status::Internal("a step has ended, and not all of it was run");
  }
  for (const Node& node : nodes_) cost_.seconds = std::max(cost_.seconds, node.processor);
  return cost_;
}

// splitmix64, in [0, 1).
double JobSimulation::Random() {
  uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

double JobSimulation::BytesSeconds(size_t bytes) const {
  return static_cast<double>(bytes) / model_.bytes_per_second;
}

// When the last byte is at the other end.
double JobSimulation::Send(uint32_t from, size_t bytes) {
  Node& node = nodes_[from];
  node.processor += model_.message_seconds;
  node.sending = std::max(node.sending, node.processor) + BytesSeconds(bytes);
  ++cost_.messages;
  cost_.bytes += bytes;
  if (from == 0) ++cost_.coordinator_messages;
  return node.sending + model_.link_seconds;
}

void JobSimulation::Receive(uint32_t to, double arrival, size_t bytes) {
  Node& node = nodes_[to];
  node.receiving = std::max(node.receiving + BytesSeconds(bytes), arrival);
  node.processor = std::max(node.processor, node.receiving) + model_.message_seconds;
  if (to == 0) ++cost_.coordinator_messages;
}

// Before the step's time begins: what a framework spends on its calls is not the control plane's.
void JobSimulation::Submit() {
  for (Member& member : members_) {
    for (uint32_t i = 0; i < model_.tensors; ++i) {
      Request request;
      request.name = "gradient.layer" + std::to_string(i) + ".weight";
      request.signature.tensors.push_back({DataType::kFloat32, {model_.tensor_bytes / 4}});
      (void)member.Submit(std::move(request), next_token_++);
    }
  }
}

// Of every real member; the time goes to the ranks that they stand for.
void JobSimulation::MakeReports() {
  double seconds = 0;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    reports_[i].clear();
    seconds = Timed(model_.measure, [&] {
      while (const auto report = members_[i].TakeReport()) reports_[i].push_back(Encode(*report));
    });
    nodes_[i].processor += seconds;
  }
  for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
    if (!IsReal(rank)) nodes_[rank].processor += seconds;
  }
  cost_.member_core_seconds += seconds;
}

// By time of arrival; the coordinator's own come first, and without a message.
std::vector<JobSimulation::Arrival> JobSimulation::SendReports() {
  std::vector<Arrival> arrivals;
  for (const Bytes& report : reports_[0]) arrivals.push_back({0, 0, &report});
  const auto own = static_cast<std::ptrdiff_t>(arrivals.size());
  for (uint32_t rank = 1; rank < model_.ranks; ++rank) {
    for (const Bytes& report : reports_[IsReal(rank) ? rank : 1]) {
      arrivals.push_back({Send(rank, report.size()), rank, &report});
    }
  }
  std::stable_sort(arrivals.begin() + own, arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
  return arrivals;
}

Status JobSimulation::Collect(const std::vector<Arrival>& arrivals) {
  for (const Arrival& arrival : arrivals) {
    if (arrival.rank != 0) Receive(0, arrival.at, arrival.report->size());
    Status status;
    const double seconds = Timed(model_.measure, [&] {
      const auto report = DecodeReport(*arrival.report);
      status = report.ok() ? coordinator_.OnReport(arrival.rank, *report, 0) : report.status();
    });
    HS_RETURN_IF_ERROR(status);
    nodes_[0].processor += seconds;
    cost_.coordinator_core_seconds += seconds;
  }
  return Status::Ok();
}

// What is published is executed at once: the step's time is that of the control plane alone.
Status JobSimulation::Publish() {
  while (coordinator_.HasWork()) {
    std::vector<PlanEntry> plan;
    std::vector<Bytes> entries;
    double seconds = Timed(model_.measure, [&] {
      plan = coordinator_.TakePlan(0);
      for (const PlanEntry& entry : plan) entries.push_back(Encode(entry));
    });
    nodes_[0].processor += seconds;
    cost_.coordinator_core_seconds += seconds;
    for (size_t i = 0; i < entries.size(); ++i) {
      ++cost_.entries;
      for (uint32_t rank = 1; rank < model_.ranks; ++rank) {
        Receive(rank, Send(0, entries[i].size()), entries[i].size());
        if (IsReal(rank)) HS_RETURN_IF_ERROR(Apply(rank, entries[i], &seconds));
        nodes_[rank].processor += seconds;
      }
      cost_.member_core_seconds += seconds;
      HS_RETURN_IF_ERROR(Apply(0, entries[i], &seconds));
      nodes_[0].processor += seconds;
      cost_.coordinator_core_seconds += seconds;
      coordinator_.OnExecuted(plan[i].sequence);
    }
  }
  return Status::Ok();
}

Status JobSimulation::Apply(uint32_t rank, const Bytes& entry, double* seconds) {
  Status status;
  *seconds = Timed(model_.measure, [&] {
    const auto decoded = DecodePlanEntry(entry);
    status = decoded.ok() ? members_[rank].Apply(*decoded).status() : decoded.status();
  });
  return status;
}

}  // namespace horoscale::sim
