// Simulates one process set: its members, its coordinator, and FIFO links with random delivery.
// Checks that all members do the same, and the guarantees of the scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/aggregator.h"
#include "core/coordinator.h"
#include "core/member.h"
#include "core/post_routes.h"
#include "core/post_table.h"
#include "core/report_tree.h"
#include "sim/random.h"
#include "sim/workload.h"

namespace horoscale::sim {

class SimulatedSet {
 public:
  SimulatedSet(CoordinatorOptions options, std::vector<Epoch> epochs, bool joins, Random& random);

  // Executes one random event; returns false if nothing happened.
  bool Step();
  // Whether any event can still happen.
  bool Sweep();
  bool HasRank(int rank) const;
  // A member is lost: the survivors abandon the set.
  void LoseMember();
  uint64_t num_posted() const { return num_posted_; }
  uint64_t num_named_posted() const { return num_named_posted_; }
  // Of the posted operations: those between hosts.
  uint64_t num_posted_between_hosts() const { return hosts_.empty() ? 0 : num_posted_; }
  // Checks that every token has ended and no state remains.
  void CheckEnd();

 private:
  using Bytes = std::vector<std::byte>;
  struct Submitted {
    uint32_t member = 0;
    uint64_t operation = 0;
    Request request;
    bool ended = false;
  };
  // The payload of a post: the operation's number, and the number of members that it stands for.
  struct Values {
    uint64_t operation = 0;
    uint64_t members = 0;
  };
  struct Node {
    std::unique_ptr<Member> member;
    size_t epoch = 0;
    size_t next = 0;  // index into the epoch's submissions
    bool joined = false;
    struct Said {
      enum class Kind { kReport, kGroupReport, kPost } kind = Kind::kReport;
      Bytes bytes;
    };
    std::deque<Said> said;  // to the coordinator, or to the member that reports for the host
    std::optional<Aggregator> aggregator;
    std::deque<Bytes> plan;
    std::unique_ptr<PostRoutes> routes;
    std::unique_ptr<PostTable> table;
    std::vector<std::deque<Bytes>> posts;  // in flight, by sender
    Token posted = kNoToken;
    std::optional<Values> of_host;  // posts to the other hosts
  };

  bool Act(uint32_t what, uint32_t member);
  bool SubmitOne(uint32_t member);
  bool SubmitJoin(uint32_t member);
  bool SendReport(uint32_t member);
  bool SendPost(uint32_t member);
  bool DeliverReport(uint32_t member);
  bool PassOnReports(uint32_t member);
  bool DeliverPost(uint32_t member);
  void SendValues(uint32_t member, std::span<const uint32_t> targets, const Values& values);
  std::optional<Values> ValuesOf(uint32_t member, std::span<const uint32_t> from,
                                 const Values& own) const;
  std::optional<Values> ResultOf(uint32_t member);
  void TellOfPost(uint32_t member, uint32_t of, const Post& post);
  void EndPosted(uint32_t member);
  bool PublishPlan();
  bool DeliverPlan(uint32_t member);
  bool FinishOne();

  void CheckAction(uint32_t member, const Action& action);
  void CheckBucket(uint32_t member, const Action& action);
  void CheckParticipants(const Action& action) const;
  void CheckFailure(const Action& action) const;
  void CheckUrgency(const Action& action);
  void CheckCredit() const;
  std::string Fingerprint(uint32_t member, const Action& action) const;
  void End(uint32_t member, Token token);

  struct Published {    // by one TakePlan()
    uint64_t executed;  // the last entry that had been executed by then
    uint64_t last;
  };
  struct Executed {  // one entry, as member 0 saw it
    bool is_bucket = false;
    uint64_t operation = 0;  // if it contains only one
    int64_t bytes = 0;
    int least_urgent = 0;
  };

  CoordinatorOptions options_;
  std::vector<Epoch> epochs_;
  bool joins_;
  Random& random_;
  const bool blocks_;                  // members block in each operation
  const int posts_percent_;            // of what may be posted
  const std::vector<uint32_t> hosts_;  // of the members; empty: one
  const ReportTree tree_;
  Coordinator coordinator_;
  std::vector<Node> nodes_;
  double now_ = 0;
  std::vector<Submitted> submitted_;  // by token - 1; joins are operation 0
  std::map<uint64_t, std::vector<Token>> by_operation_;
  std::vector<std::string> actions_;  // by sequence - 1: what the first member to apply it did
  std::vector<Executed> executed_;    // by sequence - 1
  std::vector<Published> published_;
  std::deque<uint64_t> executing_;  // on member 0
  uint64_t last_executed_ = 0;
  bool lost_ = false;
  uint64_t num_posted_ = 0;  // ended by posts alone, summed over the members
  uint64_t num_named_posted_ = 0;
};

}  // namespace horoscale::sim
