#include "transport/hosts/loss_spread.h"

#include <optional>
#include <utility>

#include "core/codec.h"
#include "platform/clock.h"

namespace horoscale {
namespace {

// A job that ends loses its ranks one after the other; this delay avoids creating links between the
// remaining ones.
constexpr double kReplaceSeconds = 0.5;

}  // namespace

// Forwards the events of one part to the sink.
class LossSpread::Ear final : public TransportSink {
 public:
  Ear(LossSpread& spread, TransportSink& sink, bool is_near)
      : spread_(spread), sink_(sink), is_near_(is_near) {}

  void OnFrame(int from, const FrameHeader& header, std::span<const std::byte> payload) override {
    if (header.kind == FrameKind::kLoss) return spread_.OnNotice(from, payload, is_near_);
    if (header.kind == FrameKind::kGoodbye) {
      spread_.goodbyes_[from].assign(payload.begin(), payload.end());
    }
    sink_.OnFrame(from, header, payload);
  }
  void OnRankLost(int rank, const Status& reason) override {
    spread_.OnLost(rank, reason, is_near_);
    sink_.OnRankLost(rank, reason);
  }
  bool IsOver(ChannelId channel) const override { return sink_.IsOver(channel); }

 private:
  LossSpread& spread_;
  TransportSink& sink_;
  const bool is_near_;
};

LossSpread::LossSpread(ShmTransport* near, TcpTransport* far, const std::vector<uint32_t>& hosts)
    : near_(near), far_(far), hosts_(hosts), rank_(near->rank()) {}

bool LossSpread::IsNear(int rank) const {
  return hosts_[static_cast<size_t>(rank)] == hosts_[static_cast<size_t>(rank_)];
}

bool LossSpread::Poll(TransportSink& sink) {
  Ear near(*this, sink, true);
  Ear far(*this, sink, false);
  const bool near_moved = near_->Poll(near);
  const bool far_moved = far_->Poll(far);
  TellNewlyLinked();
  if (replace_at_ != 0 && MonotonicSeconds() >= replace_at_) ReplaceRepresentatives();
  return near_moved || far_moved;
}

void LossSpread::OnLost(int rank, const Status& reason, bool is_near) {
  lost_.insert(rank);
  LossNotice notice;
  notice.rank = rank;
  notice.reason = reason.message();
  if (auto goodbye = goodbyes_.extract(rank)) notice.goodbye = std::move(goodbye.mapped());
  const std::vector<std::byte> bytes = Encode(notice);
  if (is_near) {
    TellWhatItTold(rank);
    TellOthers(bytes);
    lost_near_.emplace(rank, bytes);
    return;
  }
  if (reason.code() == StatusCode::kTimeout) {
    unreached_.insert(rank);
  } else if (!told_near_.contains(rank)) {
    TellHost(bytes);
  }
  replace_at_ = MonotonicSeconds() + kReplaceSeconds;
}

void LossSpread::OnNotice(int from, std::span<const std::byte> payload, bool is_near) {
  auto notice = DecodeLossNotice(payload);
  if (!notice.ok()) return;
  const int rank = notice->rank;
  // A rank ignores notices about itself and its own host, which it detects itself.
  if (rank < 0 || static_cast<size_t>(rank) >= hosts_.size() || IsNear(rank)) return;
  const bool is_news = !lost_.contains(rank) || unreached_.erase(rank) > 0;
  if (!is_news || rank == from) return;
  if (is_near) told_near_.try_emplace(rank, Told{from, {payload.begin(), payload.end()}});
  if (lost_.contains(rank)) {  // this rank has detected it before
    if (!is_near) TellHost(payload);
    return;
  }
  far_->OnToldLost(rank, notice->reason, std::move(notice->goodbye));
}

void LossSpread::TellWhatItTold(int rank) {
  for (const auto& [lost, told] : told_near_) {
    if (told.by == rank) TellHost(told.notice);
  }
}

void LossSpread::TellNewlyLinked() {
  for (const int rank : far_->TakeNewlyLinked()) {
    for (const auto& [lost, notice] : lost_near_) far_->Send(rank, {FrameKind::kLoss, {}}, notice);
  }
}

void LossSpread::TellHost(std::span<const std::byte> notice) {
  for (int rank = 0; rank < static_cast<int>(hosts_.size()); ++rank) {
    if (rank == rank_ || !IsNear(rank) || lost_.contains(rank)) continue;
    near_->Send(rank, {FrameKind::kLoss, {}}, notice);
  }
}

void LossSpread::TellOthers(std::span<const std::byte> notice) {
  // Ranks to which links are being created are notified when they are up.
  for (const int rank : far_->Linked()) {
    if (far_->StateOf(rank) != MessagePost::LinkState::kUp) continue;
    far_->Send(rank, {FrameKind::kLoss, {}}, notice);
  }
}

void LossSpread::ReplaceRepresentatives() {
  replace_at_ = 0;
  std::set<uint32_t> linked = {hosts_[static_cast<size_t>(rank_)]};
  for (const int rank : far_->Linked()) linked.insert(hosts_[static_cast<size_t>(rank)]);
  // Starting at this rank's position, so that ranks of this host choose different ones.
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const size_t rank = (static_cast<size_t>(rank_) + i) % hosts_.size();
    if (linked.contains(hosts_[rank]) || lost_.contains(static_cast<int>(rank))) continue;
    far_->Reach(static_cast<int>(rank));
    linked.insert(hosts_[rank]);
  }
}

}  // namespace horoscale
