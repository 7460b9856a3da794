// The messages of the control plane, as values; codec.h encodes them.
//
//   Report     member → coordinator of a set   "these are ready at my place"
//   GroupReport  the reports of several members, combined by an Aggregator on their way
//   Post       member → member, or host → host "ready, and here are my values": see post_table.h
//   PlanEntry  coordinator → every member      "execute this next", in one agreed order
//   Goodbye    rank → rank, once per link      "I leave, and this is why"
//   StallNotice  rank → rank 0                 "I wait here since", "these are missed there"
//   LossNotice rank → rank                     "that rank is lost, and this is what it said"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/request.h"

namespace horoscale {

// An unnamed operation that hits the cache: the slot determines its signature, the index is its
// key.
struct UnnamedHit {
  uint32_t slot = 0;
  uint64_t index = 0;
  bool operator==(const UnnamedHit&) const = default;
};

// An operation that every member can complete locally if all members post it. The member's tensors
// follow, in memory layout.
struct Post {
  uint64_t applied_sequence = 0;  // see Report
  uint64_t epoch = 0;             // how often all ranks have joined
  uint64_t index = 0;             // index among the unnamed calls of the epoch; 0: it has a name
  uint32_t slot = 0;              // slot of its signature, or of its name and signature
  uint64_t slot_since = 0;        // the plan entry that assigned the slot
  uint64_t occurrence = 0;        // for a name: number of earlier uses of the slot (ResponseCache)
  bool operator==(const Post&) const = default;

  // Whether two posts refer to the same operation, and whether they also agree on its properties.
  bool IsOf(const Post& other) const {
    return epoch == other.epoch && index == other.index && occurrence == other.occurrence &&
           (index != 0 || Agrees(other));
  }
  bool Agrees(const Post& other) const {
    return slot == other.slot && slot_since == other.slot_since;
  }
};

// What an encoding loses of a named operation on one member: the norm of the residual by that of
// the value.
struct EncodingError {
  uint32_t slot = 0;
  Encoding encoding;
  uint32_t error = 0;  // in ten-thousandths
  bool operator==(const EncodingError&) const = default;
};

struct Report {
  // The last plan entry that this member has applied, so that the coordinator can reuse retired
  // slots.
  uint64_t applied_sequence = 0;
  std::vector<uint32_t> hits;            // slots of named requests, ascending; a bitmap if denser
  std::vector<UnnamedHit> unnamed_hits;  // by ascending index
  // Priorities of the hits, then of the unnamed hits, in their order; empty if all are 0. Only
  // member 0 sets them, because its priorities count; its reports do not leave the process.
  std::vector<int> hit_priorities;
  // Request::own_bytes of the same hits; empty if all are 0. Only member 0 sets them; not encoded.
  std::vector<int64_t> hit_bytes;
  std::vector<Request> requests;  // first time, or changed
  // Of adaptive operations that have ended since the last report, where it has changed.
  std::vector<EncodingError> errors;
  bool join = false;  // after everything else in this report
  // What the member has posted, where its posts don't come to the coordinator (post_routes.h); then
  // the report says nothing else.
  std::optional<Post> posted;
  bool operator==(const Report&) const = default;
};

// An equal report of several members.
struct JointReport {
  std::vector<uint32_t> members;  // ascending, at least one
  Report report;
  bool operator==(const JointReport&) const = default;
};

// The reports of members of a group, those of each member in order.
struct GroupReport {
  std::vector<JointReport> parts;
  bool operator==(const GroupReport&) const = default;
};

// One unit, or a part of one, in a plan entry. An item with neither slot nor request is another
// part of the previous item's unit.
struct PlanItem {
  std::optional<uint32_t> slot;    // the cached unit, or the slot that is assigned to `request`
  std::optional<Request> request;  // the full request, if the unit is not cached yet
  uint64_t index = 0;              // key of an unnamed unit that is identified by slot
  // The part: the whole unit, or `count` elements from `begin` of one of its tensors.
  bool whole = true;
  uint32_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const PlanItem&) const = default;
};

struct PlanEntry {
  enum class Type : uint8_t {
    kExecute = 0,    // run `items` as one fused operation
    kFail = 1,       // items[0], whose request has only key and kind, fails on every member
    kAllJoined = 2,  // every rank has joined; `last_joined` was the last one
  };
  uint64_t sequence = 0;  // 1, 2, 3, … per set
  Type type = Type::kExecute;
  std::vector<uint32_t> retired_slots;  // forgotten by every member before the items are looked at
  std::vector<uint32_t> absent;         // member indices that have joined: they take no part
  uint32_t divisor = 0;                 // of an Average where some are absent; else the set's size
  std::optional<Encoding> encoding;     // in which those of the items travel that are adaptive
  std::vector<PlanItem> items;
  // kFail. Code is kMismatch or kJoined.
  int failure_code = 0;
  std::string failure_message;
  int last_joined = -1;  // global rank
  bool operator==(const PlanEntry&) const = default;
};

// The progress of a rank in one set when it left: the others can finish what it has executed.
struct ExecutedUpTo {
  uint32_t process_set = 0;
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t posts = 0;  // number of operations that ended there without a plan
  bool operator==(const ExecutedUpTo&) const = default;
};

struct Goodbye {
  bool clean = true;                   // false: code, message and ranks describe the root cause
  std::vector<ExecutedUpTo> executed;  // sets with at least one plan entry
  int code = 0;                        // StatusCode of the cause
  std::string message;
  std::vector<int> ranks;  // the ranks that caused it
  bool operator==(const Goodbye&) const = default;
};

// The loss of a rank, sent to ranks that may have no link to it.
struct LossNotice {
  int rank = -1;                                  // that is lost
  std::string reason;                             // how it was detected
  std::optional<std::vector<std::byte>> goodbye;  // its goodbye, as received
  bool operator==(const LossNotice&) const = default;
};

// Sent to rank 0 when a stall is reported, so that it can detect deadlocks.
struct StallNotice {
  std::string operation;      // kind and display name
  uint64_t milliseconds = 0;  // duration of the wait
  // Global ranks that have not called the operation, according to its coordinator. Empty: a thread
  // of the sender is blocked in it.
  std::vector<int> missing;
  // A thread of the sender is blocked in it, and any one of the missing ranks would end the wait.
  bool one_would_do = false;
  bool operator==(const StallNotice&) const = default;
};

}  // namespace horoscale
