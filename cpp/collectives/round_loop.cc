#include "collectives/round_loop.h"

#include <algorithm>
#include <utility>

namespace horoscale {

RoundLoop::RoundLoop(Exchange& exchange, std::vector<uint32_t> participants, int64_t rounds)
    : exchange_(exchange),
      participants_(std::move(participants)),
      peers_(participants_),
      first_round_(exchange.next_round) {
  std::rotate(peers_.begin(), std::find(peers_.begin(), peers_.end(), self()), peers_.end());
  peers_.erase(peers_.begin());
  if (participants_.size() < size()) same_for_peers_.resize(size());
  AddRounds(rounds);
}

void RoundLoop::AddRounds(int64_t rounds) {
  rounds_ += rounds;
  exchange_.next_round = Number(rounds_);
}

Result<Progress> RoundLoop::Step() {
  if (rest_) return rest_->Step();
  bool moved = false;
  if (sent_ < rounds_ && Send(sent_)) {
    ++sent_;
    if (sent_ < rounds_) return Progress::kAdvanced;
    moved = true;  // a small operation sends, receives and ends in one step
  }
  // Only after this member's chunk is sent: in place, received data overwrites its source.
  if (received_ < sent_) {
    const Progress progress = Receive(received_);
    if (progress == Progress::kDone) {
      exchange_.Release(Number(received_));
      ++received_;
      next_peer_ = 0;
    }
    if (progress != Progress::kIdle && received_ < rounds_) return Progress::kAdvanced;
  }
  if (LocalWork()) return Progress::kAdvanced;
  if (received_ < rounds_) return moved ? Progress::kAdvanced : Progress::kIdle;
  Result<int64_t> more = MoreRounds();
  if (!more.ok()) return more.status();
  if (rest_) return Progress::kAdvanced;
  if (*more == 0 && !LocalWork()) return Progress::kDone;
  AddRounds(*more);
  return Progress::kAdvanced;
}

void RoundLoop::PublishToPeers(int64_t round, int64_t bytes) {
  if (!same_for_peers_.empty()) {
    for (uint32_t peer : peers_) same_for_peers_[peer].bytes = static_cast<size_t>(bytes);
  }
  PublishExtents(round, bytes, same_for_peers_);
}

void RoundLoop::PublishExtents(int64_t round, int64_t bytes,
                               std::span<const Exchange::Extent> extents) {
  exchange_.Publish(Number(round), static_cast<size_t>(bytes), extents);
}

Bystander::Bystander(Exchange& exchange, int64_t rounds) : exchange_(exchange), rounds_(rounds) {
  exchange_.next_round += static_cast<uint64_t>(rounds);
}

Result<Progress> Bystander::Step() {
  if (rounds_ > 0) exchange_.Release(exchange_.next_round - 1);
  rounds_ = 0;
  return Progress::kDone;
}

std::vector<uint32_t> Participants(const Exchange& exchange, std::span<const uint32_t> absent) {
  std::vector<uint32_t> participants;
  participants.reserve(exchange.size());
  for (uint32_t m = 0; m < exchange.size(); ++m) {
    if (std::find(absent.begin(), absent.end(), m) == absent.end()) participants.push_back(m);
  }
  return participants;
}

ByteRange SliceOf(int64_t bytes, uint32_t owners, uint32_t index) {
  const RowRange lines = RowsOf(DivideUp(bytes, kLineBytes), owners, index);
  const int64_t first = std::min(lines.first * kLineBytes, bytes);
  return {first, std::min(lines.count * kLineBytes, bytes - first)};
}

}  // namespace horoscale
