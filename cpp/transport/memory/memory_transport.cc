#include "transport/memory/memory_transport.h"

#include <bit>
#include <cassert>
#include <string>
#include <utility>

namespace horoscale {
namespace {

Status RankFailed(int rank, std::string_view how) {
  return Status(StatusCode::kRankFailed, std::string(how), FailureDetail{{rank}, -1, ""});
}

}  // namespace

Status CheckOptions(const MemoryOptions& options) {
  const auto& [chunk_bytes, banks] = options.banks;
  if (chunk_bytes == 0 || chunk_bytes % 4096 != 0) {
    return Status::InvalidArgument("chunks of " + std::to_string(chunk_bytes) +
                                   " bytes: the size must be a multiple of 4096");
  }
  if (banks < 4) {
    return Status::InvalidArgument(std::to_string(banks) + " banks: at least 4 are required");
  }
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < 64) {
    return Status::InvalidArgument("control rings of " + std::to_string(options.ring_bytes) +
                                   " bytes: the size must be a power of two of at least 64");
  }
  return {};
}

MemoryTransport::Link::Link(const LinkEnds& ends, size_t ring_bytes)
    : doorbell(ends.sleeping, ends.doorbell),
      out(RingProducer(ends.out_ring, ring_bytes), &doorbell),
      in(RingConsumer(ends.in_ring, ring_bytes), &doorbell) {}

MemoryTransport::MemoryTransport(int rank, int size, const MemoryOptions& options,
                                 SleepFlag* sleeping, const EventFd* doorbell)
    : rank_(rank),
      options_(options),
      sleeping_(sleeping),
      doorbell_(doorbell),
      links_(static_cast<size_t>(size)),
      channels_(rank, options.banks, this, &counters_) {}

MemoryTransport::~MemoryTransport() = default;

void MemoryTransport::Connect(int rank, const LinkEnds& ends) {
  links_[static_cast<size_t>(rank)] = std::make_unique<Link>(ends, options_.ring_bytes);
}

void MemoryTransport::Send(int to_rank, const FrameHeader& header,
                           std::span<const std::byte> payload) {
  assert(to_rank != rank_);
  Link& link = *links_[static_cast<size_t>(to_rank)];
  if (link.state != Link::State::kUp) return;
  ++counters_.control_frames_sent;
  counters_.control_bytes_sent += payload.size();
  if (Status sent = link.out.Send(header, payload); !sent.ok()) Break(to_rank, link, sent);
}

bool MemoryTransport::Poll(TransportSink& sink) {
  CheckPeers();
  bool moved = false;
  for (int rank = 0; rank < size(); ++rank) {
    Link* link = links_[static_cast<size_t>(rank)].get();
    if (link == nullptr || link->state == Link::State::kLost) continue;
    if (link->state == Link::State::kUp && !link->out.HasBacklog() && link->in.Idle()) continue;
    if (PollLink(rank, *link, sink)) moved = true;
  }
  return moved;
}

bool MemoryTransport::PollLink(int rank, Link& link, TransportSink& sink) {
  bool moved = link.state == Link::State::kUp && Flush(rank, link);
  // A peer that had exited before this check can't write anything after it.
  const bool ended = link.state == Link::State::kEnding;
  if (DeliverFrames(rank, link, sink)) moved = true;
  if (!ended && link.state != Link::State::kOver) return moved;
  link.state = Link::State::kLost;
  channels_.OnRankLost(rank);
  sink.OnRankLost(rank, link.reason);
  return true;
}

bool MemoryTransport::Flush(int rank, Link& link) {
  if (!link.out.HasBacklog()) return false;
  Result<bool> moved = link.out.Flush();
  if (!moved.ok()) Break(rank, link, moved.status());
  return moved.ok() && *moved;
}

bool MemoryTransport::DeliverFrames(int rank, Link& link, TransportSink& sink) {
  bool moved = false;
  // At most one ring's capacity at a time, so that a peer that never stops sending can't block the
  // caller. A peer that has exited has not written more than that, so everything is delivered.
  size_t delivered = 0;
  while (link.state == Link::State::kEnding ||
         (link.state == Link::State::kUp && delivered < options_.ring_bytes)) {
    Result<const Frame*> frame = link.in.Next();
    if (frame.ok() && *frame == nullptr) break;
    moved = true;
    const Status taken = frame.ok() ? Deliver(rank, **frame, sink) : frame.status();
    if (!taken.ok()) {
      Break(rank, link, taken);
    } else if ((*frame)->header.kind == FrameKind::kGoodbye) {
      Finish(link, RankFailed(rank, "it closed its link"));
    } else {
      delivered += sizeof(FramePrefix) + (*frame)->payload.size();
    }
  }
  return moved;
}

Status MemoryTransport::Deliver(int rank, const Frame& frame, TransportSink& sink) {
  switch (frame.header.kind) {
    case FrameKind::kBank:
      return channels_.OnNotice(rank, frame.header.channel, frame.payload,
                                sink.IsOver(frame.header.channel));
    case FrameKind::kReport:
    case FrameKind::kPlan:
    case FrameKind::kGoodbye:
    case FrameKind::kPoison:
    case FrameKind::kStall:
    case FrameKind::kProbe:
    case FrameKind::kLaunch:
    case FrameKind::kGroupReport:
    case FrameKind::kPost:
    case FrameKind::kLoss:
    case FrameKind::kMessage:
    case FrameKind::kCreation:
      ++counters_.control_frames_received;
      sink.OnFrame(rank, frame.header, frame.payload);
      return {};
  }
  return Status::Protocol("control frame of unknown kind " +
                          std::to_string(static_cast<int>(frame.header.kind)));
}

void MemoryTransport::MarkEnded(int rank, std::string_view how) {
  Link& link = *links_[static_cast<size_t>(rank)];
  if (link.state != Link::State::kUp) return;
  link.state = Link::State::kEnding;
  link.reason = RankFailed(rank, how);
}

void MemoryTransport::Finish(Link& link, Status reason) {
  link.state = Link::State::kOver;
  link.reason = std::move(reason);
}

void MemoryTransport::Break(int rank, Link& link, const Status& why) {
  Finish(link, Status(why.code(), why.message(), FailureDetail{{rank}, -1, ""}));
}

Result<std::unique_ptr<Exchange>> MemoryTransport::Open(ChannelId channel,
                                                        std::span<const int> ranks) {
  return channels_.Open(channel, ranks);
}

std::byte* MemoryTransport::PeerBlock(int rank, int64_t offset, size_t bytes) {
  return SharedAddress(rank, offset, bytes);
}

void MemoryTransport::Notify(int rank, ChannelId channel, BankNotice::Type type,
                             const std::byte* block) {
  BankNotice notice{type, block == nullptr ? 0 : SharedOffset(block, BlockBytes(options_.banks))};
  Send(rank, {FrameKind::kBank, channel}, std::as_bytes(std::span(&notice, 1)));
}

void MemoryTransport::Arm() { sleeping_->store(1); }

void MemoryTransport::Disarm() {
  sleeping_->store(0);
  doorbell_->Drain();
}

TransportCounters MemoryTransport::counters() const {
  TransportCounters counters = counters_;
  for (const auto& link : links_) {
    if (link != nullptr) counters.doorbells_rung += link->doorbell.times_rung();
  }
  return counters;
}

bool MemoryTransport::HasUnsent() const {
  for (const auto& link : links_) {
    if (link == nullptr || link->state != Link::State::kUp) continue;
    if (link->out.HasBacklog()) return true;
  }
  return false;
}

Status MemoryTransport::UnreadableRank(int rank, std::string_view why) {
  return {StatusCode::kRankFailed,
          "the memory of rank " + std::to_string(rank) + " can't be read: " + std::string(why),
          {{rank}, -1, ""}};
}

void MemoryTransport::SendLast(std::span<const std::byte> last_frame, const Deadline& deadline) {
  for (int rank = 0; rank < size(); ++rank) {
    if (links_[static_cast<size_t>(rank)] != nullptr) {
      Send(rank, {FrameKind::kGoodbye, {}}, last_frame);
    }
  }
  while (HasUnsent() && !deadline.Passed()) {
    Arm();
    CheckPeers();
    bool moved = false;
    for (int rank = 0; rank < size(); ++rank) {
      Link* link = links_[static_cast<size_t>(rank)].get();
      if (link == nullptr || link->state != Link::State::kUp) continue;
      if (Flush(rank, *link)) moved = true;
    }
    if (!moved && HasUnsent()) Sleep(deadline.SecondsLeft());
    Disarm();
  }
}

}  // namespace horoscale
