#include "core/mailbox.h"

#include <algorithm>
#include <limits>
#include <string>

namespace horoscale {
namespace {

uint64_t EagerCost(uint64_t bytes) { return bytes + kEagerOverheadBytes; }

}  // namespace

Mailbox::KeptQueue Mailbox::FindKept(int peer, uint8_t channel, int64_t tag) {
  if (peer != kAnyPeer) return kept_.find({channel, tag, peer});
  // The queues of a tag are adjacent, one per peer.
  auto first = kept_.end();
  for (auto queue = kept_.lower_bound({channel, tag, std::numeric_limits<int>::min()});
       queue != kept_.end(); ++queue) {
    const auto& [queue_channel, queue_tag, queue_peer] = queue->first;
    if (queue_channel != channel || queue_tag != tag) break;
    if (first == kept_.end() || queue->second.front().order < first->second.front().order) {
      first = queue;
    }
  }
  return first;
}

ArrivedMessage Mailbox::Take(KeptQueue queue) {
  ArrivedMessage message = std::move(queue->second.front().message);
  queue->second.pop_front();
  if (queue->second.empty()) kept_.erase(queue);
  --kept_messages_;
  if (!message.is_eager) --peers_[message.peer].offers;
  OnTaken(message.peer, message.envelope, message.is_eager);
  return message;
}

void Mailbox::OnTaken(int peer, const Envelope& envelope, bool is_eager) {
  if (is_eager) peers_[peer].owed += EagerCost(envelope.bytes);
}

std::optional<ArrivedMessage> Mailbox::Post(Id id, int peer, uint8_t channel, int64_t tag) {
  if (const auto queue = FindKept(peer, channel, tag); queue != kept_.end()) return Take(queue);
  receives_[{channel, tag, peer}].push_back({id, next_order_++});
  return std::nullopt;
}

std::optional<ArrivedMessage> Mailbox::TakeEager(int peer, uint8_t channel, int64_t tag) {
  const auto queue = FindKept(peer, channel, tag);
  if (queue == kept_.end() || !queue->second.front().message.is_eager) return std::nullopt;
  return Take(queue);
}

Result<std::optional<Mailbox::Id>> Mailbox::Arrive(int peer, uint64_t number,
                                                   const Envelope& envelope, bool is_eager,
                                                   const EagerLimits& limits) {
  Peer& from = peers_[peer];
  if (number != from.last_number + 1) {
    return Status::Protocol("message " + std::to_string(number) + " came after message " +
                            std::to_string(from.last_number));
  }
  from.last_number = number;
  if (is_eager) {
    from.eager_bytes += EagerCost(envelope.bytes);
    const bool is_too_much =
        envelope.bytes > limits.most_bytes || from.eager_bytes > limits.credit_bytes;
    if (is_too_much) return Status::Protocol("it exceeded its credit");
  }
  auto named = receives_.find({envelope.channel, envelope.tag, peer});
  const auto any = receives_.find({envelope.channel, envelope.tag, kAnyPeer});
  if (named == receives_.end() ||
      (any != receives_.end() && any->second.front().order < named->second.front().order)) {
    named = any;
  }
  if (named == receives_.end()) {
    if (!is_eager && from.offers == kMaxOffers) {
      return Status::Protocol("it offers too many messages");
    }
    return std::optional<Id>();
  }
  const Id id = named->second.front().id;
  named->second.pop_front();
  if (named->second.empty()) receives_.erase(named);
  OnTaken(peer, envelope, is_eager);
  return std::optional<Id>(id);
}

void Mailbox::Keep(ArrivedMessage message) {
  if (!message.is_eager) ++peers_[message.peer].offers;
  ++kept_messages_;
  const Envelope& envelope = message.envelope;
  auto& queue = kept_[{envelope.channel, envelope.tag, message.peer}];
  queue.push_back({std::move(message), next_order_++});
}

std::vector<Mailbox::Id> Mailbox::ForgetPeer(int peer) {
  std::vector<Id> forgotten;
  std::erase_if(receives_, [&](const auto& entry) {
    const int from = std::get<int>(entry.first);
    if (from != peer && from != kAnyPeer) return false;
    for (const Receive& receive : entry.second) forgotten.push_back(receive.id);
    return true;
  });
  for (auto& [key, queue] : kept_) {
    if (std::get<int>(key) != peer) continue;
    const auto offer = std::find_if(queue.begin(), queue.end(),
                                    [](const Kept& kept) { return !kept.message.is_eager; });
    kept_messages_ -= static_cast<size_t>(queue.end() - offer);
    queue.erase(offer, queue.end());
  }
  std::erase_if(kept_, [](const auto& entry) { return entry.second.empty(); });
  return forgotten;
}

bool Mailbox::HasKeptOfAny(uint8_t channel, int64_t tag) {
  return FindKept(kAnyPeer, channel, tag) != kept_.end();
}

uint64_t Mailbox::TakeCreditFor(int peer) {
  Peer& of = peers_[peer];
  if (of.owed < kLeastCreditGiven) return 0;
  of.eager_bytes -= of.owed;
  return std::exchange(of.owed, 0);
}

bool EagerCredit::Take(uint64_t bytes) {
  if (bytes > limits_.most_bytes || EagerCost(bytes) > left_) return false;
  left_ -= EagerCost(bytes);
  return true;
}

Status EagerCredit::Give(uint64_t bytes) {
  if (bytes > limits_.credit_bytes - left_) return Status::Protocol("it returned too much credit");
  left_ += bytes;
  return Status::Ok();
}

}  // namespace horoscale
