// SetPosts: small operations of a set in one hop: every member posts its tensors to every other
// member, or every host to every other host (core/post_table.h, core/post_routes.h).
//
// Called by the engine's owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/collective.h"
#include "core/post_routes.h"
#include "core/post_table.h"
#include "runtime/config.h"
#include "runtime/pending_operations.h"
#include "runtime/set_control.h"
#include "runtime/set_counters.h"
#include "runtime/set_place.h"
#include "transport/transport.h"

namespace horoscale {

class SetPosts {
 public:
  // `possible`: whether the set allows unplanned operations.
  SetPosts(Transport& transport, const Config& config, const SetPlace& place,
           const PendingOperations& pending, SetControl& control, SetCounters& counters,
           bool possible);

  // A failed status, here and below, means that the members' states have diverged.
  Status OnFrame(int from_rank, std::span<const std::byte> payload, double now);
  // Posts the operation that this rank is about to report, if allowed; returns whether it did.
  // `after_others`: unfinished planned operations, which it would overtake, exist.
  Result<bool> Post(bool after_others, double now);
  // Completes the operation that all members have posted and returns its token; kNoToken if there
  // is none.
  Result<Token> End();

  // The posted operation that waits for the others' posts; kNoToken if there is none.
  Token waiting() const { return table_.HasOwn() ? own_ : kNoToken; }
  // The number of operations that have ended here without a plan.
  uint64_t ended() const { return ended_; }

 private:
  bool MayPost(const Operation& operation) const;
  void SendTo(std::span<const uint32_t> members, std::span<const std::byte> values);
  Result<bool> EndAsMember(const Operation& operation);
  Result<bool> EndAsSpeaker(const Operation& operation);
  Result<bool> EndAsListener(const Operation& operation) const;
  Status FoldOf(std::span<const uint32_t> members, const Reduction& reduction, const std::byte* own,
                int64_t elements, std::byte* out);
  Status CheckBytes(uint32_t from, size_t bytes) const;

  Transport& transport_;
  const SetPlace& place_;
  const PendingOperations& pending_;
  SetControl& control_;
  SetCounters& counters_;
  const PostRoutes routes_;
  const int64_t most_bytes_;  // maximum size of an operation; -1: posts are disabled
  PostTable table_;
  Token own_ = kNoToken;                // posted here
  std::vector<std::byte> host_values_;  // folded values of this host, if the set spans several
  bool host_has_posted_ = false;
  uint64_t ended_ = 0;
  // Of the last operation; their memory is reused.
  std::vector<std::byte> frame_;
  std::vector<const std::byte*> sources_;
};

}  // namespace horoscale
