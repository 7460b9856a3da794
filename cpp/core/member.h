// Member: one rank's view of one process set: its submissions, and their execution by the plan.
// Pure.
//
// Tokens are the caller's identifiers of its submissions (nonzero). Every token that was accepted
// by Submit() is returned exactly once as finished by Finish(), or in a failed Action, or by
// Abandon().
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/error_reports.h"
#include "core/messages.h"
#include "core/name_table.h"
#include "core/response_cache.h"

namespace horoscale {

using Token = uint64_t;
inline constexpr Token kNoToken = 0;

// A contiguous run of one tensor of one submitted unit. token is kNoToken if this member has joined
// and does not participate.
struct Piece {
  Token token = kNoToken;
  uint32_t tensor = 0;
  int64_t begin = 0;  // elements
  int64_t count = 0;  // elements; for kinds with a free first dimension: elements per row

  bool Continues(const Piece& before) const {
    return token == before.token && tensor == before.tensor && before.count > 0 &&
           begin == before.begin + before.count;
  }
};

// An action of the plan; actions are executed in order.
struct Action {
  enum class Type { kExecute, kFail, kAllJoined };
  Type type = Type::kExecute;
  uint64_t sequence = 0;
  // The common terms of all items of a bucket.
  Terms common;
  DataType dtype = DataType::kFloat32;
  std::vector<Piece> pieces;
  std::vector<uint32_t> absent;  // indices of members that do not participate
  uint32_t divisor = 0;          // of an Average
  std::string display_name;      // of the first item
  // Units whose last piece is in this action, or that failed; for kAllJoined, the token of the
  // join.
  std::vector<Token> finished;
  Status failure;
  int last_joined = -1;
};

class Member {
 public:
  Member(int process_set_id, uint32_t self, uint32_t size, size_t cache_capacity);

  // Takes a submission. kDuplicateName if the name (or a join) is pending, kInvalidArgument beyond
  // the limits of codec.h and while this member has joined. kJoin has no tensors and no name.
  Status Submit(const Request& request, Token token);

  // Returns the report to the coordinator since the last call, if there is anything new. Large
  // reports are split: call it until it returns nothing.
  std::optional<Report> TakeReport();

  // The only pending unit, if it is not reported; it may be posted instead.
  struct Lone {
    Token token = kNoToken;
    const Request* request = nullptr;
  };
  std::optional<Lone> FindLone() const;
  // The lone unit's post, which counts as its report; nothing if it has no slot.
  std::optional<Post> TakePost();
  // All members have posted this member's posted unit, so it ends without a plan entry. Returns its
  // token.
  Token EndPosted();
  // Whether a posted unit has not ended yet, either by posts or by the plan.
  bool HasPosted() const { return posted_ != kNoUnit; }
  // Whether this member may have posted it, or may still post it.
  bool MayPost(const Post& post) const;
  // Whether this member has submitted it, or never will because it has joined.
  bool HasPassed(const Post& post) const;

  // Applies the next entry of the plan; kProtocol if it is invalid. The names of units in
  // `finished` may be submitted again immediately.
  Result<Action> Apply(const PlanEntry& entry);

  // What an encoding has lost of an adaptive operation that has ended here, by that of its values:
  // part of the next report.
  void NoteError(const std::string& name, const Encoding& encoding, double error);

  // Forgets everything and returns all tokens that were pending, oldest first.
  std::vector<Token> Abandon();

  bool HasPending() const;
  // The pending units with their display names, oldest first. The runtime tracks their waiting
  // times.
  std::vector<std::pair<Token, std::string>> Pending() const;
  const ResponseCache& cache() const { return cache_; }
  uint64_t applied_sequence() const { return applied_sequence_; }
  // The index of the last submitted unnamed unit.
  uint64_t last_index() const { return last_index_; }

 private:
  using UnitRef = uint32_t;  // index into units_
  static constexpr UnitRef kNoUnit = UINT32_MAX;

  struct PendingUnit {
    Request request;
    NameId name = kNoName;
    Token token = kNoToken;
    uint64_t order = 0;              // of submission
    uint32_t hit_slot = UINT32_MAX;  // the slot in its report; its signature then needs no
                                     // comparison
    std::vector<int64_t> done;       // executed elements of each tensor, after the first part
    uint32_t tensors_left = 0;
    bool reported = false;
  };
  // The target of a plan item. unit is kNoUnit if this member does not participate.
  struct Target {
    UnitRef unit = kNoUnit;
    const Signature* signature = nullptr;
    std::string display_name;
  };

  UnitRef AddUnit(const Request& request, uint64_t index, NameId name, Token token);
  void RemoveUnit(UnitRef ref);
  UnitRef FindUnit(NameId name, uint64_t index) const;
  UnitRef FindUnit(const Post& post) const;
  const ResponseCache::Entry* FindSlot(const Post& post) const;
  void AddHit(UnitRef ref, uint32_t slot);
  bool MayJoin() const;
  Report BuildReport();

  Status CheckHeader(const PlanEntry& entry) const;
  Status Retire(const std::vector<uint32_t>& slots);
  Result<Target> Resolve(const PlanItem& item, bool absent);
  Result<Target> ResolveRequest(const PlanItem& item);
  Result<Target> ResolveSlot(const PlanItem& item);
  Status Execute(const PlanEntry& entry, Action& action);
  Status AddPieces(const PlanItem& item, const Target& target, Action& action);
  Status AddPiece(const Target& target, const Piece& piece, Action& action);
  Status Fail(const PlanEntry& entry, Action& action);
  Status EndJoin(const PlanEntry& entry, Action& action);
  Status Broken(std::string what) const;

  int process_set_id_;
  uint32_t self_;
  uint32_t size_;
  NameTable names_;
  ResponseCache cache_;
  ErrorReports errors_;
  uint64_t applied_sequence_ = 0;
  Token join_token_ = kNoToken;
  bool join_reported_ = false;
  uint64_t epoch_ = 0;       // number of times that all ranks have joined
  uint64_t last_index_ = 0;  // of unnamed calls, in the epoch
  uint64_t next_order_ = 1;
  size_t num_pending_ = 0;
  UnitRef posted_ = kNoUnit;
  std::vector<PendingUnit> units_;
  std::vector<UnitRef> free_;
  std::vector<UnitRef> unit_of_name_;  // by NameId
  std::unordered_map<uint64_t, UnitRef> unit_of_index_;
  // Submitted since the last report, in order. Cache hits are determined when the report is
  // created, so that they match its applied_sequence.
  std::deque<UnitRef> unreported_;
};

}  // namespace horoscale
