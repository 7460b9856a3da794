// PostTable: the posts of all members, as seen by each member: an operation that all members have
// posted is complete. Pure.
//
// A small operation needs no plan if there is nothing to decide: every member sends its tensors to
// every other one, or host by host (post_routes.h), and folds those of all members. A member either
// posts or reports an operation, never both, and can't withdraw either. So all members reach the
// same conclusion. Either all have posted the same, and the operation ends on each member as soon
// as it has the last post. Or some member has not; the coordinator detects that, and the posts
// count as reports.
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

  // Sets this member's post; one operation at a time.
  void SetOwn(const Post& post) { own_ = post; }
  // Clears it when its operation has ended by the plan.
  void ForgetOwn() { own_.reset(); }
  bool HasOwn() const { return own_.has_value(); }

  // Adds another member's post. kProtocol if it is invalid.
  Status Add(uint32_t from, const Post& post, std::span<const std::byte> values,
             const Member& member);

  // Whether these members have posted the same operation as this one.
  bool HasAll(std::span<const uint32_t> members) const;
  // The operation that they have posted.
  const Post& own() const { return *own_; }
  std::span<const std::byte> ValuesOf(uint32_t from) const;
  // Removes the operation.
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
