#include "faults/fault_scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace horoscale::sim {
namespace {

constexpr std::string_view kReason = "ValueError: the victim's own words";

// Small chunks, so that operations take many steps; and rings large enough that they seldom fill
// up.
MemoryOptions SmallMemory() {
  MemoryOptions options;
  options.banks = {.chunk_bytes = 4096, .banks = 4};
  options.ring_bytes = 128 << 10;  // nobody makes room for a leaving rank's goodbye
  return options;
}

Config QuietConfig() {
  Config config;
  config.stall_check = false;
  config.fusion_threshold_bytes = 4000;
  config.partition_bytes = 6000;
  config.credit_bytes = 16'000;
  config.report_patience_seconds = 0;  // time stands still here
  return config;
}

bool Contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

}  // namespace

std::string_view Name(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "none";
    case Fault::kKill:
      return "kill -9";
    case Fault::kException:
      return "exception";
    case Fault::kCleanExit:
      return "clean exit";
    case Fault::kStop:
      return "stopped for a while";
    case Fault::kStopThenKill:
      return "stopped, then killed";
  }
  return "";
}

std::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kRegister:
      return "register";
    case Phase::kNegotiate:
      return "negotiate";
    case Phase::kExecute:
      return "execute";
    case Phase::kShutdown:
      return "shutdown";
    case Phase::kAnyTime:
      return "any time";
  }
  return "";
}

FaultScenario::FaultScenario(uint64_t seed, Fault fault, Phase phase)
    : random_(seed),
      fault_(fault),
      phase_(phase),
      size_(random_.Between(2, 6)),
      victim_(random_.Between(0, size_ - 1)),
      moment_(random_.Below(600)),
      posts_(random_.Chance(40)),
      leaving_(phase == Phase::kShutdown || random_.Chance(50)) {
  // On several hosts, one rank of each forwards the reports.
  std::vector<uint32_t> played(random_.Chance(50) ? static_cast<size_t>(size_) : 0);
  for (uint32_t& host : played) host = static_cast<uint32_t>(random_.Between(0, 2));
  fabric_ = InprocFabric::Create(size_, SmallMemory(), played).TakeValue();
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  sets_ = MakeSets(random_, all, phase_ == Phase::kRegister ? 1 : 0);
  plans_ = MakePlans(random_, sets_, all, posts_);
  const std::vector<std::string> hosts(static_cast<size_t>(size_), "host");
  for (int number = 0; number < size_; ++number) {
    Rank& rank = ranks_.emplace_back();
    rank.runtime = std::make_unique<Runtime>(QuietConfig(), TopologyOf(number, hosts),
                                             fabric_->Endpoint(number), Runtime::Driver::kTurns);
    rank.gives_up = random_.Chance(50);
    for (size_t i = 0; i < plans_.size(); ++i) {
      if (Contains(plans_[i].callers, number)) rank.program.push_back(i);
    }
    if (posts_) continue;
    random_.Shuffle(rank.program);
    std::stable_partition(rank.program.begin(), rank.program.end(),
                          [this](size_t plan) { return !plans_[plan].is_last; });
  }
}

FaultScenario::~FaultScenario() {
  for (Rank& rank : ranks_) {
    rank.ended = true;  // operations that the killed rank has pending fail now
    rank.runtime.reset();
  }
}

// ------------------------------------------------------------------ actions of the ranks

void FaultScenario::Run() {
  for (uint32_t idle = 0; idle < 200; ++steps_) {
    const int rank = random_.Between(0, size_ - 1);
    idle = Act(rank) ? 0 : idle + 1;
    if (!struck_ && fault_ != Fault::kNone && MomentHasCome()) Strike();
  }
  RunUntilQuiet();
  if (struck_ && ranks_[static_cast<size_t>(victim_)].stopped) {
    CheckNobodyWaits();
    ranks_[static_cast<size_t>(victim_)].stopped = false;
    if (fault_ == Fault::kStopThenKill) End(victim_);
    RunUntilQuiet();
  }
  CheckNobodyWaits();
  leaving_ = true;
  RunUntilQuiet();
  for (const Rank& rank : ranks_) EXPECT_TRUE(rank.ended);
  for (int rank = 0; rank < size_; ++rank) {
    for (const auto& call : ranks_[static_cast<size_t>(rank)].calls) {
      // Nobody waits for what a killed process had pending.
      const int expected = call->operation->done.load() ? 1 : 0;
      EXPECT_EQ(call->ends, expected) << Describe(rank, *call);
    }
  }
}

bool FaultScenario::Act(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  if (rank.ended || rank.stopped) return false;
  switch (random_.Below(4)) {
    case 0:
      return Submit(number);
    case 1:
      return Leave(number);
    default:
      return rank.runtime->Turn();
  }
}

bool FaultScenario::Submit(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  if (rank.sets_added < sets_.size()) return RegisterNext(number);
  if (rank.next == rank.program.size()) return false;
  if (posts_ && !rank.calls.empty() && !rank.calls.back()->operation->done.load()) return false;
  const Plan& plan = plans_[rank.program[rank.next]];
  if (plan.is_last && HasPending(rank)) return false;
  ++rank.next;
  Call& call = *rank.calls.emplace_back(std::make_unique<Call>());
  call.ranks = plan.ranks;
  call.plan = &plan;
  call.operation = OperationOf(plan, number, call.data);
  call.operation->process_set_id = SetId(number, plan.ranks);
  if (call.operation->process_set_id < 0) {  // it was lost before it was registered
    rank.calls.pop_back();
    return true;
  }
  Enqueue(number, call);
  return true;
}

// A receive from any rank fails when a rank leaves, since that rank may have been the sender. A
// caller that knows of another sender calls again.
bool FaultScenario::CallAgain(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  for (const auto& failed : rank.calls) {
    const Plan* const plan = failed->plan;
    if (plan == nullptr || !plan->from_any || plan->root != number || failed->made_again) continue;
    const Operation& receive = *failed->operation;
    if (!receive.done.load() || receive.status.ok() || !IsSent(*plan)) continue;
    failed->made_again = true;
    Call& call = *rank.calls.emplace_back(std::make_unique<Call>());
    call.ranks = plan->ranks;
    call.plan = plan;
    call.operation = OperationOf(*plan, number, call.data);
    call.operation->process_set_id = receive.process_set_id;
    Enqueue(number, call);
    return true;
  }
  return false;
}

// One at a time, as the bindings do.
bool FaultScenario::RegisterNext(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  if (!rank.calls.empty()) {
    const OperationPtr& last = rank.calls.back()->operation;
    if (!last->done.load()) return false;
    if (!last->status.ok()) {
      rank.sets_added = sets_.size();  // no more sets will follow
      return true;
    }
    if (++rank.sets_added == sets_.size()) return true;
  }
  Call& call = *rank.calls.emplace_back(std::make_unique<Call>());
  for (int other = 0; other < size_; ++other) call.ranks.push_back(other);
  call.operation = std::make_shared<Operation>();
  call.operation->request.name = "registration";
  call.operation->request.signature.kind = OpKind::kAddProcessSet;
  call.operation->request.signature.ranks = sets_[rank.sets_added];
  Enqueue(number, call);
  return true;
}

void FaultScenario::Enqueue(int number, Call& call) {
  call.operation->callback = [this, number, &call](const Status&) {
    ++call.ends;
    Check(number, call);
  };
  const Status status =
      ranks_[static_cast<size_t>(number)].runtime->Enqueue(call.operation, posts_);
  if (status.ok()) return;
  call.operation->status = status;
  call.operation->done.store(true);
  ++call.ends;
  Check(number, call);
}

// A rank leaves at the end of its program, or earlier after an error.
bool FaultScenario::Leave(int number) {
  if (!leaving_) return false;
  Rank& rank = ranks_[static_cast<size_t>(number)];
  const bool failed = std::any_of(rank.calls.begin(), rank.calls.end(), [](const auto& call) {
    return call->operation->done.load() && !call->operation->status.ok();
  });
  const bool over = rank.sets_added == sets_.size() && rank.next == rank.program.size();
  if (!(over && !HasPending(rank)) && !(failed && rank.gives_up)) return false;
  rank.ended = true;
  rank.runtime->Shutdown(failed ? "RankFailedError: as a consequence" : "");
  return true;
}

bool FaultScenario::HasPending(const Rank& rank) {
  return std::any_of(rank.calls.begin(), rank.calls.end(),
                     [](const auto& call) { return !call->operation->done.load(); });
}

int FaultScenario::SetId(int number, const std::vector<int>& ranks) const {
  const Runtime& runtime = *ranks_[static_cast<size_t>(number)].runtime;
  for (const int id : runtime.ProcessSetIds()) {
    if (runtime.ProcessSetRanks(id) == ranks) return id;
  }
  return -1;
}

// ------------------------------------------------------------------ faults

bool FaultScenario::MomentHasCome() const {
  const Rank& victim = ranks_[static_cast<size_t>(victim_)];
  if (phase_ == Phase::kAnyTime) return steps_ >= moment_ && !victim.ended;
  if (phase_ == Phase::kShutdown) {  // its own, or another rank's
    return !victim.ended && (steps_ >= moment_) &&
           std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }
  if (victim.ended || victim.calls.empty()) return false;
  for (const auto& call : victim.calls) {
    const Operation& operation = *call->operation;
    if (operation.done.load()) continue;
    const bool registers = operation.request.signature.kind == OpKind::kAddProcessSet;
    if (phase_ == Phase::kRegister && registers) return true;
    if (phase_ == Phase::kNegotiate && !registers && operation.planned_at == 0) return true;
    if (phase_ == Phase::kExecute && operation.started_at != 0) return true;
  }
  return false;
}

void FaultScenario::Strike() {
  struck_ = true;
  Rank& victim = ranks_[static_cast<size_t>(victim_)];
  switch (fault_) {
    case Fault::kNone:
      break;
    case Fault::kKill:
      End(victim_);
      break;
    case Fault::kException:
      victim.ended = true;
      victim.runtime->Shutdown(std::string(kReason));
      break;
    case Fault::kCleanExit:
      victim.ended = true;
      victim.runtime->Shutdown("");
      break;
    case Fault::kStop:
    case Fault::kStopThenKill:
      victim.stopped = true;
      break;
  }
}

void FaultScenario::End(int rank) {
  ranks_[static_cast<size_t>(rank)].ended = true;
  fabric_->Kill(rank);
}

// Runs until no rank makes progress in any order.
void FaultScenario::RunUntilQuiet() {
  for (int quiet = 0; quiet < 3; ++quiet) {
    for (int rank = 0; rank < size_; ++rank) {
      if (ranks_[static_cast<size_t>(rank)].ended || ranks_[static_cast<size_t>(rank)].stopped) {
        continue;
      }
      Runtime& runtime = *ranks_[static_cast<size_t>(rank)].runtime;
      while (Submit(rank) || runtime.Turn()) quiet = 0;
      if (CallAgain(rank) || Leave(rank)) quiet = 0;
    }
  }
}

// ------------------------------------------------------------------ expectations

// No rank that lives has a pending operation, except with a stopped rank. Where ranks wait for each
// operation, they may be blocked in one behind that.
void FaultScenario::CheckNobodyWaits() const {
  for (int number = 0; number < size_; ++number) {
    const Rank& rank = ranks_[static_cast<size_t>(number)];
    if (rank.stopped || rank.ended) continue;
    const bool victim_stopped = ranks_[static_cast<size_t>(victim_)].stopped;
    for (const auto& call : rank.calls) {
      if (call->operation->done.load()) continue;
      const bool is_message = call->plan != nullptr && call->plan->is_message;
      const std::vector<int>& needed = is_message ? call->plan->callers : call->ranks;
      // Registering a set needs all ranks, including the victim.
      const bool unregistered = std::any_of(needed.begin(), needed.end(), [this](int member) {
        return ranks_[static_cast<size_t>(member)].sets_added < sets_.size();
      });
      const bool is_victims = posts_ || unregistered || Contains(needed, victim_);
      EXPECT_TRUE(victim_stopped && is_victims) << Describe(number, *call) << " hangs";
    }
  }
}

// Whether the sender is waiting in the send of that message.
bool FaultScenario::IsSent(const Plan& plan) const {
  const Rank& sender = ranks_[static_cast<size_t>(plan.from)];
  if (sender.ended || sender.stopped) return false;
  return std::any_of(sender.calls.begin(), sender.calls.end(), [&plan](const auto& call) {
    return call->plan == &plan && !call->operation->done.load();
  });
}

void FaultScenario::Check(int number, Call& call) {
  const Operation& operation = *call.operation;
  if (!operation.status.ok()) return CheckError(number, call);
  if (operation.post > 0) ++num_posted_;
  if (call.plan != nullptr && call.plan->is_message) {
    const auto sent = static_cast<float>(call.plan->from + 1);
    EXPECT_EQ(call.data.front(), sent) << Describe(number, call);
    EXPECT_EQ(call.data.back(), sent) << Describe(number, call);
    if (number != call.plan->from) ++num_messages_;
    return;
  }
  if (operation.request.signature.kind == OpKind::kAllreduce) {
    float sum = 0;
    for (const int rank : call.ranks) sum += static_cast<float>(rank + 1);
    EXPECT_EQ(call.data.front(), sum) << Describe(number, call);
    EXPECT_EQ(call.data.back(), sum) << Describe(number, call);
  }
  if (operation.request.signature.kind == OpKind::kBroadcast) {
    EXPECT_EQ(call.data.back(), static_cast<float>(operation.request.signature.root + 1));
  }
}

void FaultScenario::CheckError(int number, const Call& call) const {
  const Status& status = call.operation->status;
  if (ranks_[static_cast<size_t>(number)].ended && status.code() == StatusCode::kShutdown) return;
  ASSERT_EQ(status.code(), StatusCode::kRankFailed) << Describe(number, call);
  EXPECT_EQ(status.detail().process_set_id, call.operation->process_set_id);
  if (!posts_) {
    EXPECT_EQ(status.detail().tensor, call.operation->DisplayName());
  }
  ASSERT_TRUE(struck_) << Describe(number, call);
  const std::vector<int>& named = status.detail().ranks;
  ASSERT_EQ(named.size(), 1u) << Describe(number, call);
  const std::string who = "rank " + std::to_string(named[0]);
  EXPECT_NE(status.message().find(who), std::string::npos) << Describe(number, call);
  if (named[0] == victim_) return;
  // Another rank has left as a consequence, and the victim is not in the set.
  EXPECT_FALSE(Contains(call.ranks, victim_)) << Describe(number, call);
  EXPECT_TRUE(Contains(call.ranks, named[0]) && ranks_[static_cast<size_t>(named[0])].ended)
      << Describe(number, call);
}

std::string FaultScenario::Describe(int rank, const Call& call) const {
  std::string text = "rank " + std::to_string(rank) + ": " + call.operation->DisplayName() + " on";
  for (const int member : call.ranks) text += " " + std::to_string(member);
  return text + ", victim " + std::to_string(victim_) + ": " + call.operation->status.message();
}

}  // namespace horoscale::sim
