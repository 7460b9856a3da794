// TcpTransport: creation of links, and notifications of losses.
#include <algorithm>
#include <utility>

#include "transport/tcp/tcp_transport.h"

namespace horoscale {

TcpTransport::Link& TcpTransport::LinkTo(int rank) {
  std::unique_ptr<Link>& link = links_[rank];
  if (link == nullptr) link = std::make_unique<Link>();
  return *link;
}

Status TcpTransport::AddLink(int rank, TcpStreams sockets) {
  Link& link = LinkTo(rank);
  if (link.is_over) return {};
  link.Open(std::move(sockets), all_streams_);
  // The link itself reports its end, and the rank's goodbye before it.
  link.awaits_end = link.has_goodbye = false;
  link.goodbye.clear();
  HS_RETURN_IF_ERROR(Watch(rank, link));
  for (const Frame& frame : std::exchange(link.unsent, {})) {
    link.streams[kControl].out.Add(frame.header, frame.payload);
  }
  channels_.OnLinked(rank);
  newly_linked_.push_back(rank);
  Flush(rank, link, kControl);
  return {};
}

void TcpTransport::TakeLinks() {
  for (TcpLinkMaker::Made& made : maker_->Take()) {
    if (made.rank < 0) continue;
    const Status added =
        made.failure.ok() ? AddLink(made.rank, std::move(made.streams)) : made.failure;
    if (added.ok()) continue;
    Link& link = LinkTo(made.rank);
    if (IsAwaited(made.rank, link)) undelivered_.insert(made.rank);
    link.is_unreached = !link.is_over;
    End(made.rank, link,
        {added.code(), "rank " + std::to_string(rank_) + " can't reach it: " + added.message()});
  }
}

TcpTransport::Link& TcpTransport::FindOrReach(int rank) {
  const auto at = links_.find(rank);
  if (at != links_.end()) return *at->second;
  Reach(rank);
  return *links_.at(rank);
}

void TcpTransport::Reach(int rank) {
  if (links_.contains(rank)) return;
  LinkTo(rank);
  if (maker_ != nullptr) maker_->Call(rank);
}

MessagePost::LinkState TcpTransport::StateOf(int rank) const {
  const auto at = links_.find(rank);
  if (at == links_.end()) return LinkState::kNone;
  if (at->second->is_over) return LinkState::kLost;
  return at->second->streams.empty() ? LinkState::kNone : LinkState::kUp;
}

std::vector<int> TcpTransport::Linked() const {
  std::vector<int> ranks;
  for (const auto& [rank, link] : links_) {
    if (!link->is_over) ranks.push_back(rank);
  }
  return ranks;
}

void TcpTransport::OnToldLost(int rank, const std::string& reason,
                              std::optional<std::vector<std::byte>> goodbye) {
  Link& link = LinkTo(rank);
  if (link.is_over || link.awaits_end || !link.streams.empty()) return;
  const bool has_goodbye = goodbye.has_value();
  link.has_goodbye = has_goodbye;
  if (has_goodbye) link.goodbye = std::move(*goodbye);
  link.reason = Status(StatusCode::kRankFailed, reason);
  if (has_goodbye && maker_ != nullptr && maker_->IsComing(rank)) {
    return AwaitEnd(link, last_words_seconds_);
  }
  End(rank, link, Status(link.reason));
}

void TcpTransport::CallOnEnd(std::function<void()> look) {
  if (maker_ != nullptr) maker_->CallOnEnd(std::move(look));
}

Status TcpTransport::WatchEnd(int fd, Poller::Interest interest) {
  return maker_ != nullptr ? maker_->WatchEnd(fd, interest) : Status();
}

// Probes, and data that other ranks have as well, are not needed from a leaving rank.
bool TcpTransport::IsAwaited(int rank, const Link& link) const {
  const bool has_unsent =
      std::any_of(link.unsent.begin(), link.unsent.end(), [](const Frame& frame) {
        const FrameKind kind = frame.header.kind;
        return kind == FrameKind::kReport || kind == FrameKind::kGroupReport ||
               kind == FrameKind::kPlan || kind == FrameKind::kLaunch ||
               kind == FrameKind::kMessage || kind == FrameKind::kCreation;
      });
  return has_unsent || channels_.IsAwaitedBy(rank);
}

std::vector<int> TcpTransport::Awaited() const {
  std::vector<int> ranks;
  for (const auto& [rank, link] : links_) {
    if (!link->is_over && IsAwaited(rank, *link)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace horoscale
