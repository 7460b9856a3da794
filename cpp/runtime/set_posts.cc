#include "runtime/set_posts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/fold.h"
#include "collectives/hosts_allreduce.h"
#include "core/codec.h"

namespace horoscale {
namespace {

// Maximum number of members per host, and of hosts: every member sends to every other member or to
// its speaker, and every host to every other host. Beyond this, a coordinator needs fewer messages.
constexpr size_t kMost = 16;

// Bytes that a network transfers in the time of the two hops that a post between hosts saves
// (docs/algorithms.md).
constexpr int64_t kTwoHopsBytes = 32 * 1024;

// If H hosts send to each other, each sends (H-1) (H-2)/H times the data more than necessary.
int64_t MostBytes(int64_t configured, const PostRoutes& routes) {
  const auto hosts = static_cast<int64_t>(routes.speakers().size());
  if (hosts <= 2) return configured;
  return std::min(configured, kTwoHopsBytes * hosts / ((hosts - 1) * (hosts - 2)));
}

bool FitIn(const PostRoutes& routes) {
  return routes.most() <= kMost && routes.speakers().size() <= kMost;
}

Reduction ReductionOf(const Signature& signature, size_t members) {
  return {signature.tensors[0].dtype, signature.reduce_op, signature.prescale, signature.postscale,
          static_cast<int64_t>(members)};
}

}  // namespace

SetPosts::SetPosts(Transport& transport, const Config& config, const SetPlace& place,
                   const PendingOperations& pending, SetControl& control, SetCounters& counters,
                   bool possible)
    : transport_(transport),
      place_(place),
      pending_(pending),
      control_(control),
      counters_(counters),
      // Ranks that are not members have no routes.
      routes_(static_cast<uint32_t>(place.ranks.size()), place.IsMember() ? place.self : 0,
              transport.HostsOf(place.ranks)),
      most_bytes_(possible && config.one_hop_bytes > 0 && place.ranks.size() > 1 &&
                          place.IsMember() && FitIn(routes_)
                      ? MostBytes(config.one_hop_bytes, routes_)
                      : -1),
      table_(static_cast<uint32_t>(place.ranks.size()), place.self) {}

// A caller that does not wait may enqueue more operations, which are planned together.
bool SetPosts::MayPost(const Operation& operation) const {
  const Signature& signature = operation.request.signature;
  if (!operation.will_wait || operation.request.priority != 0) return false;
  if (signature.kind == OpKind::kBarrier) return true;
  return signature.kind == OpKind::kAllreduce && signature.reduce_op != ReduceOp::kAdasum &&
         signature.tensors.size() == 1 && !signature.on_device && !signature.encoding.IsLossy() &&
         signature.TotalBytes() <= most_bytes_;
}

void SetPosts::SendTo(std::span<const uint32_t> members, std::span<const std::byte> values) {
  if (members.empty()) return;
  frame_ = Encode(table_.own(), values, std::move(frame_));
  for (const uint32_t member : members) {
    if (member == place_.self) continue;
    transport_.Send(place_.ranks[member], {FrameKind::kPost, place_.channel}, frame_);
  }
}

Result<bool> SetPosts::Post(bool after_others, double now) {
  if (most_bytes_ < 0 || after_others) return false;
  const auto lone = control_.member().FindLone();
  if (!lone) return false;
  Operation* const operation = pending_.Find(lone->token);
  if (operation == nullptr || !MayPost(*operation)) return false;
  const auto post = control_.TakePost();
  if (!post) return false;
  table_.SetOwn(*post);
  own_ = lone->token;
  host_has_posted_ = false;
  std::span<const std::byte> values;
  if (!operation->tensors.empty()) {
    const auto bytes = static_cast<size_t>(operation->request.signature.TotalBytes());
    values = {operation->tensors[0].in, bytes};
  }
  SendTo(routes_.targets(), values);
  ++counters_.cache_hits;
  HS_RETURN_IF_ERROR(control_.OnPost(place_.self, *post, now));
  return true;
}

Status SetPosts::OnFrame(int from_rank, std::span<const std::byte> payload, double now) {
  const bool is_ours = place_.IsMember() && place_.Contains(from_rank);
  const uint32_t from = is_ours ? place_.IndexOf(from_rank) : 0;
  if (!is_ours || routes_.KindFrom(from) == PostRoutes::Kind::kNone) {
    return Status::Protocol("it sent a post that its role does not allow");
  }
  const auto posted = DecodePost(payload);
  if (!posted.ok()) return posted.status();
  HS_RETURN_IF_ERROR(table_.Add(from, posted->post, posted->values, control_.member()));
  return routes_.Counts(from) ? control_.OnPost(from, posted->post, now) : Status::Ok();
}

Result<Token> SetPosts::End() {
  if (!table_.HasOwn()) return kNoToken;
  Operation* const operation = pending_.Find(own_);
  // Or a member has reported it instead.
  if (operation == nullptr || operation->planned_at != 0 || !control_.member().HasPosted()) {
    table_.ForgetOwn();
    return kNoToken;
  }
  const auto has_result = routes_.is_speaker()    ? EndAsSpeaker(*operation)
                          : routes_.spans_hosts() ? EndAsListener(*operation)
                                                  : EndAsMember(*operation);
  if (!has_result.ok()) return has_result.status();
  if (!*has_result) return kNoToken;
  counters_.bytes += static_cast<uint64_t>(operation->request.signature.TotalBytes());
  control_.EndPosted();
  table_.End();
  operation->post = ++ended_;
  ++counters_.posts;
  return own_;
}

// On one host.
Result<bool> SetPosts::EndAsMember(const Operation& operation) {
  if (!table_.HasAll(routes_.members())) return false;
  if (operation.tensors.empty()) return true;
  const Signature& signature = operation.request.signature;
  const TensorMemory& memory = operation.tensors[0];
  HS_RETURN_IF_ERROR(FoldOf(routes_.members(), ReductionOf(signature, place_.ranks.size()),
                            memory.in, signature.tensors[0].NumElements(), memory.out));
  return true;
}

// In two parts, like the planned operation (hosts_allreduce.h), so that the bits are equal.
Result<bool> SetPosts::EndAsSpeaker(const Operation& operation) {
  const Signature& signature = operation.request.signature;
  const bool has_values = !operation.tensors.empty();
  const int64_t elements = has_values ? signature.tensors[0].NumElements() : 0;
  const Reduction whole = has_values ? ReductionOf(signature, place_.ranks.size()) : Reduction();
  const Reduction between = BetweenHosts(whole, signature.encoding.type());
  if (!host_has_posted_) {
    if (!table_.HasAll(routes_.members())) return false;
    host_values_.resize(static_cast<size_t>(elements) * SizeOf(between.dtype));
    if (has_values) {
      HS_RETURN_IF_ERROR(FoldOf(routes_.members(), InHost(whole, signature.encoding.type()),
                                operation.tensors[0].in, elements, host_values_.data()));
    }
    SendTo(routes_.speakers(), host_values_);
    host_has_posted_ = true;
  }
  if (!table_.HasAll(routes_.speakers())) return false;
  std::span<const std::byte> result;
  if (has_values) {
    std::byte* const out = operation.tensors[0].out;
    HS_RETURN_IF_ERROR(FoldOf(routes_.speakers(), IntoTensors(between, whole.dtype),
                              host_values_.data(), elements, out));
    result = {out, static_cast<size_t>(signature.TotalBytes())};
  }
  SendTo(routes_.members(), result);
  return true;
}

// The speaker of this member's host sends the result.
Result<bool> SetPosts::EndAsListener(const Operation& operation) const {
  if (!table_.HasAll(routes_.targets())) return false;
  if (operation.tensors.empty()) return true;
  const uint32_t speaker = routes_.targets().front();
  const std::span<const std::byte> result = table_.ValuesOf(speaker);
  HS_RETURN_IF_ERROR(
      CheckBytes(speaker, static_cast<size_t>(operation.request.signature.TotalBytes())));
  if (!result.empty()) std::memcpy(operation.tensors[0].out, result.data(), result.size());
  return true;
}

// Folds the members' posts, with `own` for this member.
Status SetPosts::FoldOf(std::span<const uint32_t> members, const Reduction& reduction,
                        const std::byte* own, int64_t elements, std::byte* out) {
  const size_t bytes = static_cast<size_t>(elements) * SizeOf(reduction.dtype);
  sources_.clear();
  for (const uint32_t member : members) {
    if (member != place_.self) HS_RETURN_IF_ERROR(CheckBytes(member, bytes));
    sources_.push_back(member == place_.self ? own : table_.ValuesOf(member).data());
  }
  Fold(reduction, out, sources_, elements);
  return Status::Ok();
}

Status SetPosts::CheckBytes(uint32_t from, size_t bytes) const {
  if (table_.ValuesOf(from).size() == bytes) return Status::Ok();
  const int rank = place_.ranks[from];
  return Status(StatusCode::kProtocol,
                "rank " + std::to_string(rank) + " posted data of a different size than announced",
                {{rank}, place_.id(), ""});
}

}  // namespace horoscale
