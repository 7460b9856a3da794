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

CoordinatorOptions OptionsOf(const JobModel& model) {
  CoordinatorOptions options;
  options.ranks.resize(model.ranks);
  std::iota(options.ranks.begin(), options.ranks.end(), 0);
  options.cache_capacity = std::max<size_t>(options.cache_capacity, model.tensors);
  return options;
}

ReportTree TreeOf(const JobModel& model) {
  std::vector<uint32_t> hosts(model.ranks_per_host == 0 ? 0 : model.ranks);
  for (uint32_t rank = 0; rank < hosts.size(); ++rank) hosts[rank] = rank / model.ranks_per_host;
  return ReportTree(model.ranks, hosts, model.fan_out);
}

}  // namespace

JobSimulation::JobSimulation(const JobModel& model)
    : model_(model),
      options_(OptionsOf(model)),
      coordinator_(options_),
      tree_(TreeOf(model)),
      nodes_(model.ranks),
      inbox_(model.ranks),
      random_(model.seed) {
  const uint32_t members = model.own_members ? model.ranks : std::min(model.ranks, 2u);
  for (uint32_t i = 0; i < members; ++i) {
    members_.emplace_back(0, i, model.ranks, options_.cache_capacity);
  }
  reports_.resize(members);
  for (uint32_t rank = 1; rank < model.ranks; ++rank) {
    if (tree_.children(rank).empty()) continue;
    nodes_[rank].aggregator =
        std::make_unique<Aggregator>(tree_.Group(rank), model.patience_seconds);
  }
}

bool JobSimulation::IsLocal(uint32_t a, uint32_t b) const {
  return model_.ranks_per_host > 0 && a / model_.ranks_per_host == b / model_.ranks_per_host;
}

Result<StepCost> JobSimulation::Step() {
  cost_ = {};
  for (Node& node : nodes_) {
    node.processor = model_.jitter_seconds * Random();
    node.sending = node.receiving = 0;
  }
  Submit();
  MakeReports();
  HS_RETURN_IF_ERROR(Collect());
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

// Runs the function of the rank's core, and charges its duration to the rank's processor.
template <typename Function>
void JobSimulation::Charge(uint32_t rank, Function function) {
  const double begin = model_.measure ? ProcessorSeconds() : 0;
  function();
  const double seconds = model_.measure ? ProcessorSeconds() - begin : 0;
  nodes_[rank].processor += seconds;
  if (rank == 0) cost_.coordinator_core_seconds += seconds;
  if (rank == model_.ranks - 1) cost_.member_core_seconds += seconds;
}

// A simulated rank takes as long as the real one that represents it.
void JobSimulation::ChargeLike(uint32_t rank, double seconds) {
  nodes_[rank].processor += seconds;
  if (rank == model_.ranks - 1) cost_.member_core_seconds += seconds;
}

// Returns when the last byte arrives.
double JobSimulation::Send(uint32_t from, uint32_t to, size_t bytes) {
  Node& node = nodes_[from];
  if (from == 0) ++cost_.coordinator_messages;
  if (IsLocal(from, to)) {
    ++cost_.local_messages;
    node.processor += model_.local_message_seconds;
    return node.processor + model_.local_link_seconds;
  }
  ++cost_.messages;
  cost_.bytes += bytes;
  node.processor += model_.message_seconds;
  node.sending =
      std::max(node.sending, node.processor) + static_cast<double>(bytes) / model_.bytes_per_second;
  return node.sending + model_.link_seconds;
}

void JobSimulation::Receive(uint32_t from, uint32_t to, double arrival, size_t bytes) {
  Node& node = nodes_[to];
  if (to == 0) ++cost_.coordinator_messages;
  if (IsLocal(from, to)) {
    node.processor = std::max(node.processor, arrival) + model_.local_message_seconds;
    return;
  }
  const double seconds = static_cast<double>(bytes) / model_.bytes_per_second;
  node.receiving = std::max(node.receiving + seconds, arrival);
  node.processor = std::max(node.processor, node.receiving) + model_.message_seconds;
}

// Before the timed step: the framework's calls are not part of the control plane.
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

// Every real member reports; the ranks that the last one represents take as long.
void JobSimulation::MakeReports() {
  double seconds = 0;
  for (uint32_t i = 0; i < model_.ranks; ++i) {
    if (IsReal(i)) {
      seconds = -nodes_[i].processor;
      reports_[i].clear();
      Charge(i, [&] {
        while (auto report = members_[i].TakeReport()) reports_[i].push_back(std::move(*report));
      });
      seconds += nodes_[i].processor;
    } else {
      ChargeLike(i, seconds);
    }
  }
}

// From the leaves up, because a rank's message may depend on all that it receives. Its own reports
// come first.
Status JobSimulation::Collect() {
  for (uint32_t rank = model_.ranks; rank-- > 0;) {
    Node& node = nodes_[rank];
    for (const Report& report : reports_[IsReal(rank) ? rank : 1]) {
      if (rank == 0 || node.aggregator) {
        HS_RETURN_IF_ERROR(Hand(rank, {{{{rank}, report}}}));
        continue;
      }
      Message message{0, rank, false, nullptr};
      Charge(rank, [&] { message.bytes = std::make_shared<const Bytes>(Encode(report)); });
      message.at = Send(rank, tree_.parent(rank), message.bytes->size());
      inbox_[tree_.parent(rank)].push_back(std::move(message));
    }
    std::vector<Message> inbox = std::exchange(inbox_[rank], {});
    std::stable_sort(inbox.begin(), inbox.end(),
                     [](const Message& a, const Message& b) { return a.at < b.at; });
    for (const Message& message : inbox) HS_RETURN_IF_ERROR(Take(rank, message));
    if (!node.aggregator) continue;
    if (const auto deadline = node.aggregator->Deadline()) {
      node.processor = std::max(node.processor, *deadline);
      PassOn(rank);
    }
  }
  return Status::Ok();
}

Status JobSimulation::Take(uint32_t rank, const Message& message) {
  Node& node = nodes_[rank];
  if (node.aggregator) {
    if (const auto deadline = node.aggregator->Deadline(); deadline && *deadline < message.at) {
      node.processor = std::max(node.processor, *deadline);
      PassOn(rank);
    }
  }
  Receive(message.from, rank, message.at, message.bytes->size());
  GroupReport report;
  Status status;
  Charge(rank, [&] {
    if (message.is_group) {
      auto decoded = DecodeGroupReport(*message.bytes);
      status = decoded.status();
      if (decoded.ok()) report = decoded.TakeValue();
    } else {
      auto decoded = DecodeReport(*message.bytes);
      status = decoded.status();
      if (decoded.ok()) report.parts.push_back({{message.from}, decoded.TakeValue()});
    }
  });
  return status.ok() ? Hand(rank, report) : status;
}

// To the rank's coordinator or aggregator.
Status JobSimulation::Hand(uint32_t rank, const GroupReport& report) {
  Node& node = nodes_[rank];
  Status status;
  const double now = node.processor;
  Charge(rank, [&] {
    status =
        rank == 0 ? coordinator_.OnReport(report, now) : node.aggregator->OnReport(report, now);
  });
  if (status.ok() && rank != 0) PassOn(rank);
  return status;
}

void JobSimulation::PassOn(uint32_t rank) {
  Node& node = nodes_[rank];
  for (;;) {
    Message message{0, rank, true, nullptr};
    Charge(rank, [&] {
      const auto report = node.aggregator->TakeReport(node.processor);
      if (report) message.bytes = std::make_shared<const Bytes>(Encode(*report));
    });
    if (!message.bytes) return;
    message.at = Send(rank, tree_.parent(rank), message.bytes->size());
    inbox_[tree_.parent(rank)].push_back(std::move(message));
  }
}

// Entries are executed as soon as they are published, so that the step's time is that of the
// control plane only.
Status JobSimulation::Publish() {
  while (coordinator_.HasWork()) {
    std::vector<PlanEntry> plan;
    std::vector<Bytes> entries;
    Charge(0, [&] {
      plan = coordinator_.TakePlan(nodes_[0].processor);
      for (const PlanEntry& entry : plan) entries.push_back(Encode(entry));
    });
    for (size_t i = 0; i < plan.size(); ++i) {
      ++cost_.entries;
      HS_RETURN_IF_ERROR(PassDown(entries[i]));
      coordinator_.OnExecuted(plan[i].sequence);
    }
  }
  return Status::Ok();
}

// From the root down, each rank to its children before it applies the entry itself.
Status JobSimulation::PassDown(const Bytes& entry) {
  for (uint32_t rank = 0; rank < model_.ranks; ++rank) {
    for (const uint32_t child : tree_.children(rank)) {
      Receive(rank, child, Send(rank, child, entry.size()), entry.size());
    }
    HS_RETURN_IF_ERROR(Apply(rank, entry));
  }
  return Status::Ok();
}

Status JobSimulation::Apply(uint32_t rank, const Bytes& entry) {
  if (!IsReal(rank)) {
    ChargeLike(rank, applying_);
    return Status::Ok();
  }
  Status status;
  const double before = nodes_[rank].processor;
  Charge(rank, [&] {
    const auto decoded = DecodePlanEntry(entry);
    status = decoded.ok() ? members_[rank].Apply(*decoded).status() : decoded.status();
  });
  applying_ = nodes_[rank].processor - before;
  return status;
}

}  // namespace horoscale::sim
