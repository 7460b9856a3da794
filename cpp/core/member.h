// One rank's view of one process set: what it has submitted, and what the plan makes of it. Pure.
//
// Tokens are the caller's names for its submissions (non-zero). Every token that was accepted by
// Submit() is returned exactly once as finished by Finish(), or in a failed Action, or by Abandon().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/messages.h"
#include "core/response_cache.h"

namespace horoscale {

using Token = uint64_t;
inline constexpr Token kNoToken = 0;

// A contiguous run of one tensor of one submitted unit. token is kNoToken where this member has
// joined and takes no part.
struct Piece {
  Token token = kNoToken;
  uint32_t tensor = 0;
  int64_t begin = 0;  // elements
  int64_t count = 0;  // elements; for kinds with a free first dimension: elements per row
};

// What to do next, in this order.
struct Action {
  enum class Type { kExecute, kFail, kAllJoined };
  Type type = Type::kExecute;
  uint64_t sequence = 0;
  // kExecute: a bucket never mixes kind, dtype, operator, root or scale factors.
  Signature common;                     // of the first item; tensors is empty
  DataType dtype = DataType::kFloat32;
  std::vector<Piece> pieces;
  std::vector<uint32_t> absent;         // member indices without part
  std::string display_name;             // of the first item
  // Units that end with this action (their last piece is in it), or that failed; kAllJoined: the
  // token of the join.
  std::vector<Token> finished;
  Status failure;
  int last_joined = -1;
};

class Member {
 public:
  Member(int process_set_id, uint32_t self, uint32_t size, size_t cache_capacity);

  // Takes a submission. kDuplicateName if the name is pending. kJoin has no tensors and no name.
  Status Submit(Request request, Token token);

  // What is new since the last call, for the coordinator; nothing if there is nothing to say.
  std::optional<Report> TakeReport();

  // Applies the next entry of the plan; kProtocol if it can't be. The units in `finished` are
  // forgotten: their names may be submitted again at once.
  Result<Action> Apply(const PlanEntry& entry);

  // Forgets everything and returns all tokens that were pending, oldest first.
  std::vector<Token> Abandon();

  bool HasPending() const;
  // Display names of what is pending and since when it was submitted is the runtime's business.
  std::vector<std::pair<Token, std::string>> Pending() const;
  const ResponseCache& cache() const { return cache_; }
  uint64_t applied_sequence() const { return applied_sequence_; }

 private:
  struct PendingUnit {
    Request request;
    Token token;
    int64_t elements_left;
  };

  int process_set_id_;
  uint32_t self_;
  uint32_t size_;
  ResponseCache cache_;
  uint64_t applied_sequence_ = 0;
  Token join_token_ = kNoToken;
  Report next_report_;
  bool anything_new_ = false;
  std::unordered_map<std::string, PendingUnit> named_;
  std::unordered_map<uint64_t, PendingUnit> unnamed_;
};

}  // namespace horoscale
