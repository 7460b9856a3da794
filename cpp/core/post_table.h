// What members have posted, as each member sees it: it ends what all of them have posted. Pure.
//
// A small operation needs no plan where nothing is to be decided: every member sends its tensors to
// every other one, or host by host (post_routes.h), and who has those of all folds them. A member
// posts an operation or reports it, never both, and can't take either back. So all see the same:
// all have posted alike and the operation has ended, on each member as soon as it has the last
// post; or some member has not, which the coordinator finds out, and what was posted of it counts
// as reported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/member.h"
#include "core/messages.h"

namespace horoscale {

class PostTable {
 public:
  PostTable(uint32_t size, uint32_t self) : self_(self), posted_(size) {}

  // This member posts; one operation at a time.
  void SetOwn(const Post& post) { own_ = post; }
  // Its operation has ended by the plan.
  void ForgetOwn() { own_.reset(); }
  bool HasOwn() const { return own_.has_value(); }

  // Another member has posted. kProtocol for what can't be.
  Status Add(uint32_t from, const Post& post, std::span<const std::byte> values,
             const Member& member);

  // Whether these members have posted what this one has.
  bool HasAll(std::span<const uint32_t> members) const;
  // Then: what they have posted.
  const Post& own() const { return *own_; }
  std::span<const std::byte> ValuesOf(uint32_t from) const;
  // Forgets the operation.
  void End();

 private:
  struct Posted {
    Post post;
    std::vector<std::byte> values;
  };
  const Posted* Find(uint32_t from) const;
  bool IsNeeded(const Post& post, const Member& member) const;
  void DropOver(std::vector<Posted>& posted, const Member& member);

  const uint32_t self_;
  std::optional<Post> own_;
  std::vector<std::vector<Posted>> posted_;  // by member, in order
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace horoscale
