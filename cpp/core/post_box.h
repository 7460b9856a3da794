// What members have posted, as the coordinator sees it: it counts, so that what not all of them
// post is planned. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/slot_table.h"

namespace horoscale {

class PostBox {
 public:
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
    kTooMany,    // operations
  };
  struct Waiting {
    uint64_t index = 0;
    SharedSignature signature;
    std::vector<bool> has_posted;  // by member
    double seconds = 0;
  };

  // `period`: of reports about what waits; 0: none.
  PostBox(uint32_t size, double period) : size_(size), period_(period) {}

  // A member posts the unnamed operation of this index, which it has not posted before.
  Outcome Add(uint32_t member, uint64_t index, const Said& said, double now);
  // What was posted of the operation, by member, and forgotten here; empty if nothing was.
  std::vector<std::optional<Said>> Take(uint64_t index);

  bool Has(uint64_t index) const { return operations_.contains(index); }
  // Operations that others have posted.
  std::vector<uint64_t> NotPostedBy(uint32_t member) const;
  // Since the last time, or since the first post, a period has passed.
  std::vector<Waiting> TakeOverdue(double now);
  std::vector<Waiting> All() const;

 private:
  struct Operation {
    std::vector<std::optional<Said>> posted;  // by member
    uint32_t count = 0;
    bool agrees = true;
    double since = 0;
    double due = 0;
  };
  static Waiting Describe(uint64_t index, const Operation& operation, double now);

  const uint32_t size_;
  const double period_;
  std::map<uint64_t, Operation> operations_;  // by index
};

}  // namespace horoscale
