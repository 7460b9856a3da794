#include "faults/fault_plan.h"

#include <algorithm>
#include <memory>

#include "core/mailbox.h"

namespace horoscale::sim {
namespace {

constexpr size_t kMaxSmallFloats = kMaxEagerBytes / sizeof(float);

// Each message of a pair has its own tag, since ranks submit them in any order.
void MakeMessage(Random& random, int number, Plan& plan) {
  plan.is_message = true;
  plan.from = random.Pick(plan.ranks);
  int to = random.Pick(plan.ranks);
  while (to == plan.from) to = random.Pick(plan.ranks);
  plan.callers = {std::min(plan.from, to), std::max(plan.from, to)};
  plan.root = to;
  plan.name = "tag " + std::to_string(number);
  plan.from_any = random.Chance(30);
  plan.count = random.Chance(50) ? random.Between(1, static_cast<int>(kMaxSmallFloats))
                                 : random.Between(5000, 12'000);
}

}  // namespace

std::vector<std::vector<int>> MakeSets(Random& random, const std::vector<int>& all, int least) {
  std::vector<std::vector<int>> sets;
  for (int i = random.Between(least, 3); i > 0; --i) {
    std::vector<int> ranks;
    for (const int rank : all) {
      if (random.Chance(60)) ranks.push_back(rank);
    }
    if (ranks.empty() || ranks == all) continue;
    if (std::find(sets.begin(), sets.end(), ranks) == sets.end()) sets.push_back(ranks);
  }
  return sets;
}

std::vector<Plan> MakePlans(Random& random, const std::vector<std::vector<int>>& sets,
                            const std::vector<int>& all, bool one_hop) {
  static const std::vector<OpKind> kKinds = {OpKind::kAllreduce, OpKind::kAllreduce,
                                             OpKind::kBroadcast, OpKind::kBarrier};
  std::vector<Plan> plans;
  for (int i = random.Between(1, 12); i > 0; --i) {
    Plan& plan = plans.emplace_back();
    plan.ranks = sets.empty() || random.Chance(40) ? all : random.Pick(sets);
    plan.callers = plan.ranks;
    plan.kind = random.Pick(kKinds);
    if (one_hop) {
      plan.kind = random.Chance(50) ? OpKind::kAllreduce : OpKind::kBarrier;
      plan.count = 5;
      if (random.Chance(40)) plan.name = plan.kind == OpKind::kBarrier ? "meet" : "sum";
      continue;
    }
    if (plan.ranks.size() > 1 && random.Chance(35)) {
      MakeMessage(random, i, plan);
      continue;
    }
    plan.name = "op." + std::to_string(i);
    plan.root = random.Pick(plan.ranks);
    plan.count = random.Chance(50) ? random.Between(1, 200) : random.Between(2000, 12'000);
  }
  // A rank that leaves ends its sets, which also fails messages between other ranks.
  const auto is_message = [](const Plan& plan) { return plan.is_message; };
  if (std::any_of(plans.begin(), plans.end(), is_message)) {
    plans.push_back({.ranks = all, .callers = all, .name = "end", .kind = OpKind::kBarrier});
    plans.back().is_last = true;
  }
  return plans;
}

OperationPtr OperationOf(const Plan& plan, int rank, std::vector<float>& data) {
  auto operation = std::make_shared<Operation>();
  const bool has_data = plan.is_message || plan.kind != OpKind::kBarrier;
  if (has_data) data.assign(static_cast<size_t>(plan.count), static_cast<float>(rank + 1));
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  if (plan.is_message) {
    const bool is_send = rank == plan.from;
    const int peer = is_send ? plan.root : plan.from_any ? kAnyPeer : plan.from;
    const int64_t tag = std::stoll(plan.name.substr(plan.name.find(' ')));
    operation->message = std::make_unique<Message>();
    *operation->message = {
        is_send, peer, {tag, 0, DataType::kFloat32, data.size() * sizeof(float)}, bytes};
    return operation;
  }
  operation->request.name = plan.name;
  Signature& signature = operation->request.signature;
  signature.kind = plan.kind;
  if (has_data) {
    signature.tensors = {{DataType::kFloat32, {plan.count}}};
    operation->tensors = {{bytes, bytes, plan.count, static_cast<int64_t>(sizeof(float))}};
  }
  if (plan.kind == OpKind::kBroadcast) signature.root = plan.root;
  return operation;
}

}  // namespace horoscale::sim
