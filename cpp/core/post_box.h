// PostBox: the coordinator's count of members' posts, so that operations that not all of them post
// are planned. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/slot_table.h"
#include "core/stall_watch.h"

namespace horoscale {

class PostBox {
 public:
  struct Key {
    NameId name = kNoName;
    uint64_t number = 0;  // the index of an unnamed call, or the occurrence of a name
    auto operator<=>(const Key&) const = default;
  };
  // A member's post of an operation.
  struct Said {
    uint32_t slot = 0;
    uint64_t slot_since = 0;
    SharedSignature signature;
  };
  enum class Outcome {
    kWaits,      // for other members
    kEnded,      // all members have posted the same, and it was removed
    kDisagrees,  // all have posted, but not the same
    kTwice,      // the member has already posted it
    kTooMany,    // operations
  };
  struct Waiting {
    Key key;
    SharedSignature signature;
    std::vector<bool> has_posted;  // by member
    double seconds = 0;
  };

  // `period`: the time between reports of waiting operations; 0: no reports.
  PostBox(uint32_t size, double period) : size_(size), period_(period) {}

  // Takes a member's post.
  Outcome Add(uint32_t member, const Key& key, const Said& said, double now);
  // The posts of an operation that are removed from the box, and when the first arrived.
  struct Posted {
    std::vector<std::optional<Said>> by_member;  // empty if nothing was
    WaitClock clock;
  };
  Posted Take(const Key& key);

  bool empty() const { return operations_.empty(); }
  // When the first member posted it; nothing if none has.
  std::optional<double> Since(const Key& key) const;
  // Operations that others have posted; for a name, the first one.
  std::vector<Key> NotPostedBy(uint32_t member) const;
  std::optional<Key> FirstNotPostedBy(uint32_t member, NameId name) const;
  // Operations whose last report, or first post, is more than a period ago.
  std::vector<Waiting> TakeOverdue(double now);
  std::vector<Waiting> All() const;

 private:
  struct Operation {
    std::vector<std::optional<Said>> posted;  // by member
    uint32_t count = 0;
    bool agrees = true;
    WaitClock clock;
  };
  static Waiting Describe(const Key& key, const Operation& operation, double now);

  std::map<Key, Operation>::iterator Begin(const Key& key, double now);

  const uint32_t size_;
  const double period_;
  std::map<Key, Operation> operations_;
  std::map<Key, Operation>::node_type spare_;  // node of an ended operation, reused for the next
                                               // one
};

}  // namespace horoscale
