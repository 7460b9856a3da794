#include "sim/simulated_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "core/codec.h"

namespace horoscale::sim {
namespace {

constexpr uint32_t kNumActs = 9;

int64_t BytesOf(const Action& action) {
  int64_t bytes = 0;
  for (const Piece& piece : action.pieces) {
    bytes += piece.count * static_cast<int64_t>(SizeOf(action.dtype));
  }
  return bytes;
}

// Whether members can block in each operation: every member calls a prefix of the same order.
bool HaveOneOrder(const std::vector<Epoch>& epochs) {
  for (const Epoch& epoch : epochs) {
    const auto& longest = *std::ranges::max_element(
        epoch, {}, [](const std::vector<Submission>& program) { return program.size(); });
    for (const auto& program : epoch) {
      if (!std::equal(program.begin(), program.end(), longest.begin(),
                      [](const Submission& a, const Submission& b) {
                        return a.operation == b.operation;
                      })) {
        return false;
      }
    }
  }
  return true;
}

// Numbered in the order of their lowest members.
std::vector<uint32_t> RandomHosts(Random& random, size_t size) {
  std::vector<uint32_t> hosts;
  if (random.Chance(50)) return hosts;
  uint32_t count = 0;
  const auto most = static_cast<uint32_t>(random.Between(2, 5));
  for (size_t member = 0; member < size; ++member) {
    hosts.push_back(random.Below(std::min(count + 1, most)));
    count = std::max(count, hosts.back() + 1);
  }
  return count > 1 ? hosts : std::vector<uint32_t>();
}

}  // namespace

SimulatedSet::SimulatedSet(CoordinatorOptions options, std::vector<Epoch> epochs, bool joins,
                           Random& random)
    : options_(std::move(options)),
      epochs_(std::move(epochs)),
      joins_(joins),
      random_(random),
      blocks_(HaveOneOrder(epochs_) && random.Chance(80)),
      posts_percent_(random.Pick<int>({0, 70, 98, 100})),
      hosts_(RandomHosts(random, options_.ranks.size())),
      tree_(static_cast<uint32_t>(options_.ranks.size()), hosts_),
      coordinator_(options_),
      nodes_(options_.ranks.size()) {
  const auto size = static_cast<uint32_t>(nodes_.size());
  for (uint32_t i = 0; i < size; ++i) {
    nodes_[i].member =
        std::make_unique<Member>(options_.process_set_id, i, size, options_.cache_capacity);
    if (i > 0 && !tree_.children(i).empty()) {
      nodes_[i].aggregator.emplace(tree_.Group(i), random.Pick<double>({0, 0.01, 1}));
    }
    nodes_[i].routes = std::make_unique<PostRoutes>(size, i, hosts_);
    nodes_[i].table = std::make_unique<PostTable>(size, i);
    nodes_[i].posts.resize(size);
  }
}

bool SimulatedSet::HasRank(int rank) const {
  return std::binary_search(options_.ranks.begin(), options_.ranks.end(), rank);
}

bool SimulatedSet::Step() {
  now_ += 0.001;
  return Act(random_.Below(kNumActs), random_.Below(nodes_.size()));
}

bool SimulatedSet::Sweep() {
  now_ += 1;
  bool any = false;
  for (uint32_t what = 0; what < kNumActs; ++what) {
    for (uint32_t member = 0; member < nodes_.size(); ++member) any = Act(what, member) || any;
  }
  return any;
}

bool SimulatedSet::Act(uint32_t what, uint32_t member) {
  if (lost_) return false;
  switch (what) {
    case 0:
      return SubmitOne(member);
    case 1:
      return SubmitJoin(member);
    case 2:
      return SendReport(member);
    case 3:
      return DeliverReport(member);
    case 4:
      return PublishPlan();
    case 5:
      return DeliverPlan(member);
    case 6:
      return DeliverPost(member);
    case 7:
      return PassOnReports(member);
    default:
      return FinishOne();
  }
}

bool SimulatedSet::SubmitOne(uint32_t member) {
  Node& node = nodes_[member];
  if (node.joined || node.epoch == epochs_.size()) return false;
  if (blocks_ && node.member->HasPending()) return false;
  const std::vector<Submission>& program = epochs_[node.epoch][member];
  if (node.next == program.size()) return false;
  const Submission& submission = program[node.next];
  const Token token = submitted_.size() + 1;
  const Status status = node.member->Submit(submission.request, token);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kDuplicateName) << status.message();
    return false;  // the previous step is still in progress
  }
  submitted_.push_back({member, submission.operation, submission.request});
  by_operation_[submission.operation].push_back(token);
  ++node.next;
  return true;
}

bool SimulatedSet::SubmitJoin(uint32_t member) {
  Node& node = nodes_[member];
  if (!joins_ || node.joined || node.epoch == epochs_.size()) return false;
  if (node.next < epochs_[node.epoch][member].size()) return false;
  Request join;
  join.signature.kind = OpKind::kJoin;
  submitted_.push_back({member, 0, join});
  EXPECT_TRUE(node.member->Submit(join, submitted_.size()).ok());
  EXPECT_FALSE(node.member->Submit(Request{}, 1u << 30).ok());
  node.joined = true;
  return true;
}

bool SimulatedSet::PublishPlan() {
  const bool has_work = coordinator_.HasWork();
  const std::vector<PlanEntry> plan = coordinator_.TakePlan(now_);
  EXPECT_EQ(has_work, !plan.empty());
  for (const PlanEntry& entry : plan) {
    const Bytes bytes = Encode(entry);
    const Result<PlanEntry> decoded = DecodePlanEntry(bytes);
    EXPECT_TRUE(decoded.ok() && *decoded == entry);
    for (Node& node : nodes_) node.plan.push_back(bytes);
  }
  if (!plan.empty()) published_.push_back({last_executed_, plan.back().sequence});
  return !plan.empty();
}

bool SimulatedSet::DeliverPlan(uint32_t member) {
  Node& node = nodes_[member];
  if (node.plan.empty()) return false;
  const Result<PlanEntry> entry = DecodePlanEntry(node.plan.front());
  node.plan.pop_front();
  const Result<Action> action = node.member->Apply(*entry);
  EXPECT_TRUE(action.ok()) << action.status().message();
  if (!action.ok()) return true;
  CheckAction(member, *action);
  for (Token token : action->finished) End(member, token);
  if (action->type == Action::Type::kAllJoined) {
    node.joined = false;
    ++node.epoch;
    node.next = 0;
  }
  if (member == 0) executing_.push_back(action->sequence);
  return true;
}

bool SimulatedSet::FinishOne() {
  if (executing_.empty()) return false;
  last_executed_ = executing_.front();
  coordinator_.OnExecuted(last_executed_);
  executing_.pop_front();
  return true;
}

void SimulatedSet::End(uint32_t member, Token token) {
  ASSERT_GE(token, 1u);
  ASSERT_LE(token, submitted_.size());
  EXPECT_FALSE(submitted_[token - 1].ended);
  EXPECT_EQ(submitted_[token - 1].member, member);
  submitted_[token - 1].ended = true;
}

// Everything that must be equal on all members, with operations instead of tokens.
std::string SimulatedSet::Fingerprint(uint32_t member, const Action& action) const {
  const bool absent = std::binary_search(action.absent.begin(), action.absent.end(), member);
  std::ostringstream text;
  text << static_cast<int>(action.type) << Hash(Signature{action.common, {}}) << Name(action.dtype)
       << action.failure.message() << action.last_joined << "|";
  for (uint32_t index : action.absent) text << index << ",";
  for (const Piece& piece : action.pieces) {
    EXPECT_EQ(piece.token == kNoToken, absent);
    text << "|" << piece.tensor << ":" << piece.begin << "+" << piece.count;
  }
  return text.str();
}

void SimulatedSet::CheckAction(uint32_t member, const Action& action) {
  const std::string fingerprint = Fingerprint(member, action);
  ASSERT_LE(action.sequence, actions_.size() + 1);
  if (action.sequence > actions_.size()) actions_.push_back(fingerprint);
  EXPECT_EQ(actions_[action.sequence - 1], fingerprint);
  if (action.type == Action::Type::kExecute) CheckBucket(member, action);
  if (action.type == Action::Type::kFail) CheckFailure(action);
  if (member == 0) CheckUrgency(action);
}

void SimulatedSet::CheckBucket(uint32_t member, const Action& action) {
  ASSERT_FALSE(action.pieces.empty());
  const int64_t limit =
      std::min(options_.limits.fusion_threshold_bytes, options_.limits.credit_bytes / 2);
  EXPECT_TRUE(action.pieces.size() == 1 || BytesOf(action) <= limit) << BytesOf(action);
  for (const Piece& piece : action.pieces) {
    if (piece.token == kNoToken) continue;
    const Submitted& submitted = submitted_[piece.token - 1];
    EXPECT_EQ(submitted.member, member);
    const Signature& signature = submitted.request.signature;
    Terms expected = signature;
    if (expected.encoding.IsAdaptive()) {
      EXPECT_FALSE(action.common.encoding.IsAdaptive());
      expected.encoding = action.common.encoding;
    }
    EXPECT_EQ(action.common, expected);
    if (signature.tensors.empty()) continue;
    EXPECT_EQ(signature.tensors[piece.tensor].dtype, action.dtype);
    EXPECT_LE(piece.begin + piece.count, signature.tensors[piece.tensor].NumElements());
  }
  CheckParticipants(action);
}

// All members that are not absent have submitted the same operation, and the others have not.
void SimulatedSet::CheckParticipants(const Action& action) const {
  for (const Piece& piece : action.pieces) {
    if (piece.token == kNoToken) continue;
    const Submitted& mine = submitted_[piece.token - 1];
    const std::vector<Token>& tokens = by_operation_.at(mine.operation);
    EXPECT_EQ(tokens.size() + action.absent.size(), nodes_.size());
    for (Token token : tokens) {
      EXPECT_EQ(submitted_[token - 1].request.signature, mine.request.signature);
    }
  }
}

void SimulatedSet::CheckFailure(const Action& action) const {
  for (Token token : action.finished) {
    const Submitted& mine = submitted_[token - 1];
    bool agree = true;
    const std::vector<Token>& tokens = by_operation_.at(mine.operation);
    for (Token other : tokens) {
      agree = agree && submitted_[other - 1].request.signature == mine.request.signature;
    }
    if (action.failure.code() == StatusCode::kMismatch) {
      EXPECT_FALSE(agree) << action.failure.message();
    } else {
      EXPECT_EQ(action.failure.code(), StatusCode::kJoined);
      EXPECT_TRUE(agree && tokens.size() < nodes_.size()) << action.failure.message();
    }
  }
}

// Of entries that were published, and thus ready, at the same time, none runs before a more urgent
// one.
void SimulatedSet::CheckUrgency(const Action& action) {
  Executed executed;
  executed.is_bucket = action.type == Action::Type::kExecute;
  executed.bytes = executed.is_bucket ? BytesOf(action) : 0;
  int most_urgent = std::numeric_limits<int>::min();
  executed.least_urgent = std::numeric_limits<int>::max();
  for (const Piece& piece : action.pieces) {
    int priority = 0;
    if (piece.token != kNoToken) {
      const Submitted& submitted = submitted_[piece.token - 1];
      if (options_.priority_scheduling) priority = submitted.request.priority;
      executed.operation = submitted.operation;
    }
    most_urgent = std::max(most_urgent, priority);
    executed.least_urgent = std::min(executed.least_urgent, priority);
  }
  executed_.push_back(executed);
  if (executed_.size() < 2 || !executed.is_bucket) return;
  const Executed& before = executed_[executed_.size() - 2];
  const auto batch = std::lower_bound(
      published_.begin(), published_.end(), action.sequence - 1,
      [](const Published& published, uint64_t sequence) { return published.last < sequence; });
  const bool at_once = batch->last != action.sequence - 1;
  if (at_once && before.is_bucket) {
    EXPECT_GE(before.least_urgent, most_urgent);
  }
}

// After each TakePlan(), the published entries that are not yet executed are within the credit, or
// are one bucket, or the buckets of one group.
void SimulatedSet::CheckCredit() const {
  for (const Published& published : published_) {
    int64_t bytes = 0;
    bool one_operation = true;
    uint64_t buckets = 0;
    uint64_t operation = 0;
    for (uint64_t sequence = published.executed + 1; sequence <= published.last; ++sequence) {
      const Executed& executed = executed_.at(sequence - 1);
      if (!executed.is_bucket) continue;
      bytes += executed.bytes;
      one_operation = one_operation && (buckets == 0 || executed.operation == operation);
      operation = executed.operation;
      ++buckets;
    }
    EXPECT_TRUE(bytes <= options_.limits.credit_bytes || buckets == 1 || one_operation);
  }
}

void SimulatedSet::LoseMember() {
  if (lost_) return;
  lost_ = true;
  for (uint32_t member = 0; member < nodes_.size(); ++member) {
    for (Token token : nodes_[member].member->Abandon()) End(member, token);
    EXPECT_FALSE(nodes_[member].member->HasPending());
  }
}

void SimulatedSet::CheckEnd() {
  for (const Submitted& submitted : submitted_) EXPECT_TRUE(submitted.ended);
  if (lost_) return;
  for (uint32_t member = 0; member < nodes_.size(); ++member) {
    const Node& node = nodes_[member];
    EXPECT_FALSE(node.member->HasPending());
    EXPECT_EQ(node.member->applied_sequence(), actions_.size());
    EXPECT_EQ(node.member->cache().size(), nodes_[0].member->cache().size());
    EXPECT_LE(node.member->cache().size(), options_.cache_capacity);
    EXPECT_TRUE(node.epoch == epochs_.size() || node.next == epochs_[node.epoch][member].size());
  }
  EXPECT_FALSE(coordinator_.HasWork());
  EXPECT_TRUE(coordinator_.TakeStallReports(now_ + 1e9).empty());
  CheckCredit();
}

}  // namespace horoscale::sim
