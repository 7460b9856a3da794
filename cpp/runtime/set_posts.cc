#include "runtime/set_posts.h"

#include <string>

#include "collectives/fold.h"
#include "core/codec.h"

namespace horoscale {
namespace {

// Every member sends to every other one: beyond this many a coordinator has less to do.
constexpr size_t kMostMembers = 16;

}  // namespace

SetPosts::SetPosts(Transport& transport, const Config& config, const SetPlace& place,
                   const PendingOperations& pending, SetControl& control, SetCounters& counters,
                   bool possible)
    : transport_(transport),
      place_(place),
      pending_(pending),
      control_(control),
      counters_(counters),
      most_bytes_(possible && config.one_hop_bytes > 0 && place.ranks.size() > 1 &&
                          place.ranks.size() <= kMostMembers && place.IsMember() &&
                          transport.HostsOf(place.ranks).empty()
                      ? config.one_hop_bytes
                      : -1),
      table_(static_cast<uint32_t>(place.ranks.size()), place.self) {}

// A caller that does not wait may have more to come, which is planned together.
bool SetPosts::MayPost(const Operation& operation) const {
  const Signature& signature = operation.request.signature;
  if (!operation.will_wait || operation.request.priority != 0) return false;
  if (signature.kind == OpKind::kBarrier) return true;
  return signature.kind == OpKind::kAllreduce && signature.tensors.size() == 1 &&
         !signature.on_device && signature.TotalBytes() <= most_bytes_;
}

Result<bool> SetPosts::Post(bool after_others, double now) {
  if (most_bytes_ < 0 || after_others) return false;
  const auto lone = control_.member().FindLone();
  if (!lone) return false;
  Operation* const operation = pending_.Find(lone->token);
  if (operation == nullptr || !MayPost(*operation)) return false;
  const auto post = control_.TakePost();
  if (!post) return false;
  std::span<const std::byte> values;
  if (!operation->tensors.empty()) {
    const auto bytes = static_cast<size_t>(operation->request.signature.TotalBytes());
    values = {operation->tensors[0].in, bytes};
  }
  const std::vector<std::byte> frame = Encode(*post, values);
  for (const int rank : place_.ranks) {
    if (rank != place_.rank) transport_.Send(rank, {FrameKind::kPost, place_.channel}, frame);
  }
  ++counters_.cache_hits;
  table_.SetOwn(*post);
  own_ = lone->token;
  HS_RETURN_IF_ERROR(control_.OnPost(place_.self, *post, now));
  return true;
}

Status SetPosts::OnFrame(int from_rank, std::span<const std::byte> payload, double now) {
  if (!place_.IsMember() || !place_.Contains(from_rank)) {
    return Status::Protocol("a post that is not its to send");
  }
  const auto posted = DecodePost(payload);
  if (!posted.ok()) return posted.status();
  const uint32_t from = place_.IndexOf(from_rank);
  HS_RETURN_IF_ERROR(table_.Add(from, posted->post, posted->values, control_.member()));
  return control_.OnPost(from, posted->post, now);
}

Result<Token> SetPosts::End() {
  if (!table_.HasOwn()) return kNoToken;
  Operation* const operation = pending_.Find(own_);
  // Some member has reported it.
  if (operation == nullptr || operation->planned_at != 0 || !control_.member().HasPosted()) {
    table_.ForgetOwn();
    return kNoToken;
  }
  if (!table_.IsComplete()) return kNoToken;
  const Signature& signature = operation->request.signature;
  if (!signature.tensors.empty()) {
    const TensorSpec& tensor = signature.tensors[0];
    const TensorMemory& memory = operation->tensors[0];
    const auto bytes = static_cast<size_t>(signature.TotalBytes());
    std::vector<const std::byte*> values(place_.ranks.size());
    for (uint32_t member = 0; member < values.size(); ++member) {
      if (member == place_.self) {
        values[member] = memory.in;
        continue;
      }
      const std::span<const std::byte> theirs = table_.ValuesOf(member);
      if (theirs.size() != bytes) {
        const int rank = place_.ranks[member];
        return Status(
            StatusCode::kProtocol,
            "rank " + std::to_string(rank) + " posted another number of bytes than it said",
            {{rank}, place_.id(), ""});
      }
      values[member] = theirs.data();
    }
    const Reduction reduction{tensor.dtype, signature.reduce_op, signature.prescale,
                              signature.postscale, static_cast<int64_t>(values.size())};
    Fold(reduction, memory.out, values, tensor.NumElements());
    counters_.bytes += bytes;
  }
  control_.EndPosted();
  table_.End();
  operation->post = ++ended_;
  ++counters_.posts;
  return own_;
}

}  // namespace horoscale
