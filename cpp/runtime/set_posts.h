// SetPosts: small operations of a set that take one hop, because every member posts its tensors to
// every other one, or every host to every other one (core/post_table.h, core/post_routes.h).
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
  // `possible`: nothing else of the set needs its operations planned.
  SetPosts(Transport& transport, const Config& config, const SetPlace& place,
           const PendingOperations& pending, SetControl& control, SetCounters& counters,
           bool possible);

  // A failed status, here and below, means that the members don't agree any more.
  Status OnFrame(int from_rank, std::span<const std::byte> payload, double now);
  // Posts what this rank is about to report, if it may; whether it did. `after_others`: planned
  // operations have not ended here, which it would overtake.
  Result<bool> Post(bool after_others, double now);
  // The operation that all members have posted, which has its result now; kNoToken: none.
  Result<Token> End();

  // What was posted here and waits for the others' posts; kNoToken: nothing.
  Token waiting() const { return table_.HasOwn() ? own_ : kNoToken; }
  // Operations that have ended here without a plan.
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
  const int64_t most_bytes_;  // of an operation; -1: nothing is posted
  PostTable table_;
  Token own_ = kNoToken;                // posted here
  std::vector<std::byte> host_values_;  // of the own host, where it spans several
  bool host_has_posted_ = false;
  uint64_t ended_ = 0;
  // Of the last operation, for the memory that they have.
  std::vector<std::byte> frame_;
  std::vector<const std::byte*> sources_;
};

}  // namespace horoscale
