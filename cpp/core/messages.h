// The messages of the control plane, as values. codec.h gives their bytes.
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

// An unnamed operation that hits the cache: its slot gives the signature, its index the key.
struct UnnamedHit {
  uint32_t slot = 0;
  uint64_t index = 0;
  bool operator==(const UnnamedHit&) const = default;
};

// An operation that every member may end by itself, if all post it. The member's tensors follow, as
// they are in its memory.
struct Post {
  uint64_t applied_sequence = 0;  // as in Report
  uint64_t epoch = 0;             // how often all ranks have joined
  uint64_t index = 0;             // among the unnamed calls of the epoch; 0: it has a name
  uint32_t slot = 0;              // of its signature, or of its name with that
  uint64_t slot_since = 0;        // the plan entry that gave it
  uint64_t occurrence = 0;        // of a name: how often the slot had been used (ResponseCache)
  bool operator==(const Post&) const = default;

  // Whether two members, or one at two times, mean the same operation; whether they also agree
  // about what it is.
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
  // The last plan entry this member has applied: lets the coordinator give retired slots again.
  uint64_t applied_sequence = 0;
  std::vector<uint32_t> hits;            // slots of named requests, ascending; a bitmap if denser
  std::vector<UnnamedHit> unnamed_hits;  // by ascending index
  // Priorities of the hits, then of the unnamed hits, in their order; empty if all are 0. A hit
  // says nothing of its priority otherwise, and only member 0, whose priorities count, has to say
  // it: its reports don't leave the process.
  std::vector<int> hit_priorities;
  // Request::own_bytes of the same hits; empty if all are 0. By member 0 alone, and not encoded.
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

// What several members report in the same words.
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

// One unit, or a part of one, inside a plan entry. An item with neither slot nor request is a
// further part of the unit of the item before it.
struct PlanItem {
  std::optional<uint32_t> slot;    // cached unit, or the slot that `request` takes from now on
  std::optional<Request> request;  // the unit in full where it is not in the cache yet
  uint64_t index = 0;              // key of an unnamed unit that is referred to by slot
  // The part: all of the unit, or `count` elements from `begin` of one of its tensors.
  bool whole = true;
  uint32_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const PlanItem&) const = default;
};

struct PlanEntry {
  enum class Type : uint8_t {
    kExecute = 0,    // run `items` as one fused operation
    kFail = 1,       // items[0], whose request has only key and kind, is in error on every member
    kAllJoined = 2,  // every rank has joined; `last_joined` was the last one
  };
  uint64_t sequence = 0;  // 1, 2, 3, … in each set
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

// How far a rank got in one set before it left: what it has executed, the others can finish without
// it.
struct ExecutedUpTo {
  uint32_t process_set = 0;
  uint32_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t posts = 0;  // operations that ended there without a plan
  bool operator==(const ExecutedUpTo&) const = default;
};

struct Goodbye {
  bool clean = true;                   // false: code, message and ranks say what went wrong first
  std::vector<ExecutedUpTo> executed;  // sets whose plan has begun
  int code = 0;                        // StatusCode of the cause
  std::string message;
  std::vector<int> ranks;  // the ranks that caused it
  bool operator==(const Goodbye&) const = default;
};

// What a rank that has lost another one tells ranks that may have no link to that one.
struct LossNotice {
  int rank = -1;                                  // that is lost
  std::string reason;                             // how that was seen
  std::optional<std::vector<std::byte>> goodbye;  // that it sent, as it came
  bool operator==(const LossNotice&) const = default;
};

// Told to rank 0 when a stall is due to be reported, for it to find ranks that wait for each other.
struct StallNotice {
  std::string operation;      // kind and display name
  uint64_t milliseconds = 0;  // that the wait has lasted
  // Global ranks that the operation misses, as its coordinator sees it. Empty: a thread of the
  // sender is blocked in it.
  std::vector<int> missing;
  // A thread of the sender is blocked in it, and one of the missing ranks would do.
  bool one_would_do = false;
  bool operator==(const StallNotice&) const = default;
};

}  // namespace horoscale
