#include "runtime/launch_stamps.h"

#include <vector>

#include "core/codec.h"

namespace horoscale {
namespace {

bool IsLaunchedByNccl(const Action& action) {
  return action.type == Action::Type::kExecute && action.common.on_device && action.absent.empty();
}

}  // namespace

LaunchStamps::LaunchStamps(LaunchOrder& order, Transport& transport, const SetPlace& place)
    : order_(order), transport_(transport), place_(place) {
  if (place.id() != 0) stamped_from_ = 0;
  if (place.IsMember() && place.self == 0) collector_.emplace(place.ranks.size());
}

// The stamped entries are determined by the plan alone: those of the global set from the first
// registration on, and all of other sets.
void LaunchStamps::Propose(const Action& action) {
  if (action.common.kind == OpKind::kAddProcessSet && !stamped_from_) {
    stamped_from_ = action.sequence;
  }
  if (!stamped_from_ || !IsLaunchedByNccl(action) || place_.ranks.size() < 2) return;
  const LaunchStamp proposal{action.sequence,
                             order_.Propose(place_.channel.incarnation, action.sequence)};
  if (collector_) {
    (void)Collect(0, proposal);  // own ones are in order
  } else {
    transport_.Send(place_.coordinator(), {FrameKind::kLaunch, place_.channel}, Encode(proposal));
  }
}

Status LaunchStamps::OnFrame(int from_rank, std::span<const std::byte> payload) {
  const auto stamp = DecodeLaunchStamp(payload);
  if (!stamp.ok()) return stamp.status();
  if (collector_ && place_.Contains(from_rank)) {
    return Collect(place_.IndexOf(from_rank), *stamp);
  }
  if (from_rank == place_.coordinator()) {
    return order_.Agree(place_.channel.incarnation, *stamp);
  }
  return Status::Protocol("it sent a launch stamp, which its role does not allow");
}

Status LaunchStamps::Collect(uint32_t member, LaunchStamp proposal) {
  const auto decision = collector_->Add(member, proposal);
  if (!decision.ok()) return decision.status();
  if (!*decision) return Status::Ok();
  const std::vector<std::byte> bytes = Encode(**decision);
  for (const int rank : place_.ranks) {
    if (rank == place_.rank) continue;
    transport_.Send(rank, {FrameKind::kLaunch, place_.channel}, bytes);
  }
  return order_.Agree(place_.channel.incarnation, **decision);
}

}  // namespace horoscale
