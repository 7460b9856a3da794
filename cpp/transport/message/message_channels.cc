#include "transport/message/message_channels.h"

#include <errno.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>

namespace horoscale {
namespace {

// There is one poll between chunks that are folded consecutively.
constexpr int kPollsOwing = 3;

}  // namespace

MessageChannels::~MessageChannels() {
  for (auto& [id, channel] : channels_) {
    if (channel.exchange != nullptr) channel.exchange->Orphan();
  }
}

Result<std::unique_ptr<MessageExchange>> MessageChannels::Open(
    ChannelId id, std::span<const int> ranks, const std::function<bool(int)>& served,
    std::vector<uint32_t> hosts) {
  assert(std::is_sorted(ranks.begin(), ranks.end()));
  Channel& channel = channels_[id];
  if (!channel.ranks.empty()) {
    return Status::InvalidArgument(Describe(id) + " is already open");
  }
  for (const int early : channel.opened) {
    if (std::binary_search(ranks.begin(), ranks.end(), early)) continue;
    return Status::Protocol("rank " + std::to_string(early) + " has opened " + Describe(id) +
                            ", but is not a member of it on this rank");
  }
  std::vector<bool> reached(ranks.size());
  std::transform(ranks.begin(), ranks.end(), reached.begin(), served);
  const auto self = std::lower_bound(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  auto exchange =
      MessageExchange::Create(id, ranks, static_cast<uint32_t>(self), reached, std::move(hosts),
                              post_, counters_, [this, id] { Close(id); });
  if (exchange == nullptr) return Status::System("allocating the banks of a process set", ENOMEM);
  for (const int early : channel.opened) early_.Remove(early);
  channel.ranks.assign(ranks.begin(), ranks.end());
  channel.served = std::move(reached);
  channel.exchange = exchange.get();
  for (uint32_t m = 0; m < ranks.size(); ++m) {
    if (!channel.served[m]) continue;
    if (channel.opened.contains(ranks[m])) exchange->OnOpened(m);
    const MessagePost::LinkState state = post_->StateOf(ranks[m]);
    if (state == MessagePost::LinkState::kUp) TellOpened(id, channel, m);
    if (state == MessagePost::LinkState::kLost) channel.opened.insert(ranks[m]);  // never will be
  }
  return exchange;
}

void MessageChannels::TellOpened(ChannelId id, Channel& channel, uint32_t member) {
  channel.exchange->OnLinked(member);
  if (!channel.told.insert(channel.ranks[member]).second) return;
  post_->PostMessage(channel.ranks[member], {MessageType::kOpened, FrameKind::kBank, id.process_set,
                                             id.incarnation, 0, 0, 0, 0, 0, 0});
}

void MessageChannels::OnLinked(int rank) {
  for (auto& [id, channel] : channels_) {
    if (channel.exchange == nullptr) continue;
    const auto member = MemberOf(channel, id, rank);
    if (member.ok() && channel.served[*member]) TellOpened(id, channel, *member);
  }
}

void MessageChannels::Close(ChannelId id) {
  Channel& channel = channels_.at(id);
  channel.exchange = nullptr;
  // Kept until all members have opened it, so that their messages are not mistaken for those of a
  // new channel.
  if (IsQuiet(channel)) channels_.erase(id);
}

bool MessageChannels::IsQuiet(const Channel& channel) {
  return channel.is_over || std::includes(channel.opened.begin(), channel.opened.end(),
                                          channel.told.begin(), channel.told.end());
}

Result<uint32_t> MessageChannels::MemberOf(const Channel& channel, ChannelId id, int rank) {
  const auto position = std::lower_bound(channel.ranks.begin(), channel.ranks.end(), rank);
  if (position == channel.ranks.end() || *position != rank) {
    return Status::Protocol("a message for " + Describe(id) + " from rank " + std::to_string(rank) +
                            ", which is not a member");
  }
  return static_cast<uint32_t>(position - channel.ranks.begin());
}

Status MessageChannels::OnMessage(int from, const MessageHeader& header, bool is_over) {
  if (header.type != MessageType::kOpened && header.type != MessageType::kReleased) {
    return Status::Protocol("message of unknown type " +
                            std::to_string(static_cast<int>(header.type)));
  }
  const ChannelId id = {header.process_set, header.incarnation};
  if (header.type == MessageType::kOpened) return OnOpened(from, id, is_over);
  const auto at = channels_.find(id);
  if (at == channels_.end() || at->second.exchange == nullptr) return {};
  const auto member = MemberOf(at->second, id, from);
  if (!member.ok()) return member.status();
  at->second.exchange->OnReleased(*member, header.round);
  return {};
}

Status MessageChannels::OnOpened(int from, ChannelId id, bool is_over) {
  if (is_over && !channels_.contains(id)) return {};
  Channel& channel = channels_[id];
  if (channel.ranks.empty()) {  // not open here yet
    return channel.opened.insert(from).second ? early_.Add(from) : Status();
  }
  const auto member = MemberOf(channel, id, from);
  if (!member.ok()) return member.status();
  channel.opened.insert(from);
  if (channel.exchange != nullptr) {
    channel.exchange->OnOpened(*member);
  } else if (IsQuiet(channel)) {
    channels_.erase(id);
  }
  return {};
}

void MessageChannels::Forget(ChannelId id) {
  const auto at = channels_.find(id);
  if (at == channels_.end()) return;
  if (at->second.exchange != nullptr) {
    at->second.is_over = true;
    return;
  }
  if (at->second.ranks.empty()) {
    for (const int early : at->second.opened) early_.Remove(early);
  }
  channels_.erase(at);
}

void MessageChannels::OnRankLost(int rank) {
  early_.OnRankLost(rank);
  for (auto at = channels_.begin(); at != channels_.end();) {
    Channel& channel = at->second;
    bool is_over = false;
    if (channel.ranks.empty()) {
      channel.opened.erase(rank);
      is_over = channel.opened.empty();
    } else if (std::binary_search(channel.ranks.begin(), channel.ranks.end(), rank)) {
      channel.opened.insert(rank);
      if (channel.exchange != nullptr) {
        const auto member = MemberOf(channel, at->first, rank);
        if (member.ok()) channel.exchange->OnLost(*member);
      }
      is_over = channel.exchange == nullptr && IsQuiet(channel);
    }
    at = is_over ? channels_.erase(at) : std::next(at);
  }
}

void MessageChannels::OnPolled() {
  if (post_->owing_exchanges > 0 && ++polls_owing_ >= kPollsOwing) TellReleased();
}

void MessageChannels::TellReleased() {
  polls_owing_ = 0;
  if (post_->owing_exchanges == 0) return;
  for (auto& [id, channel] : channels_) {
    if (channel.exchange != nullptr) channel.exchange->TellReleased();
  }
}

bool MessageChannels::IsAwaitedBy(int rank) const {
  if (post_->waiting_chunks == 0) return false;
  return std::any_of(channels_.begin(), channels_.end(), [rank](const auto& entry) {
    const auto& [id, channel] = entry;
    if (channel.exchange == nullptr) return false;
    const auto member = MemberOf(channel, id, rank);
    return member.ok() && channel.exchange->HasWaiting(*member);
  });
}

Result<MessageChannels::Arrival> MessageChannels::Begin(int from, const MessageHeader& header) {
  if (header.bytes > MessageExchange::kChunkBytes) {
    return Status::Protocol("chunk of invalid size: " + std::to_string(header.bytes) + " bytes");
  }
  Arrival arrival;
  arrival.id = {header.process_set, header.incarnation};
  arrival.round = header.round;
  const auto at = channels_.find(arrival.id);
  if (at == channels_.end() || at->second.exchange == nullptr) return arrival;
  const auto member = MemberOf(at->second, arrival.id, from);
  if (!member.ok()) return member.status();
  arrival.member = *member;
  arrival.space = at->second.exchange->Accept(*member, header);
  if (arrival.space == nullptr) return Status::Protocol("a chunk for which there is no bank");
  arrival.memory = at->second.exchange->memory();
  return arrival;
}

void MessageChannels::End(const Arrival& arrival) {
  const auto at = channels_.find(arrival.id);
  if (arrival.memory == nullptr || at == channels_.end() || at->second.exchange == nullptr) return;
  at->second.exchange->OnArrived(arrival.member, arrival.round);
}

}  // namespace horoscale
