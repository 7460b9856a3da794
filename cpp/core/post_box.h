// What members have posted, as the coordinator sees it: it counts, so that what not all of them
// post is planned. Pure.
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
    uint64_t number = 0;  // the index of an unnamed call, the occurrence of a name
    auto operator<=>(const Key&) const = default;
  };
  // What a member's post says of the operation.
  struct Said {
    uint32_t slot = 0;
    uint64_t slot_since = 0;
    SharedSignature signature;
  };
  enum class Outcome {
    kWaits,      // for other members
    kEnded,      // all members have posted the same: forgotten
    kDisagrees,  // all have posted, and not the same
    kTwice,      // the member has posted it before
    kTooMany,    // operations
  };
  struct Waiting {
    Key key;
    SharedSignature signature;
    std::vector<bool> has_posted;  // by member
    double seconds = 0;
  };

  // `period`: of reports about what waits; 0: none.
  PostBox(uint32_t size, double period) : size_(size), period_(period) {}

  // A member posts an operation.
  Outcome Add(uint32_t member, const Key& key, const Said& said, double now);
  // What was posted of the operation and is forgotten here, since when that waits.
  struct Posted {
    std::vector<std::optional<Said>> by_member;  // empty if nothing was
    WaitClock clock;
  };
  Posted Take(const Key& key);

  bool empty() const { return operations_.empty(); }
  // When the first member posted it; nothing if none has.
  std::optional<double> Since(const Key& key) const;
  // Operations that others have posted; the first one of a name.
  std::vector<Key> NotPostedBy(uint32_t member) const;
  std::optional<Key> FirstNotPostedBy(uint32_t member, NameId name) const;
  // Since the last time, or since the first post, a period has passed.
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
  std::map<Key, Operation>::node_type spare_;  // of one that has ended: the next one takes it
};

}  // namespace horoscale
