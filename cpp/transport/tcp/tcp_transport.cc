#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/codec.h"
#include "platform/clock.h"

namespace horoscale {
namespace {

// Of one stream in one Poll(), so that a busy peer can't keep the caller in it.
constexpr size_t kReceiveBytes = 1 << 20;

// The goodbye of a rank that leaves is sent before its data stream ends: lost packets may hold it
// up for so long.
constexpr double kGoodbyeSeconds = 3;

uint64_t TagOf(int rank, bool is_data) {
  return static_cast<uint64_t>(rank) << 1 | static_cast<uint64_t>(is_data);
}

bool IsControlKind(FrameKind kind) {
  switch (kind) {
    case FrameKind::kReport:
    case FrameKind::kPlan:
    case FrameKind::kGoodbye:
    case FrameKind::kPoison:
    case FrameKind::kStall:
    case FrameKind::kProbe:
      return true;
    case FrameKind::kBank:
      return false;
  }
  return false;
}

}  // namespace

// What the messages of one stream mean.
class TcpTransport::Arrivals final : public MessageReader::Handler {
 public:
  Arrivals(TcpTransport& transport, int from, Link& link, bool is_data, TransportSink& sink)
      : transport_(transport), from_(from), link_(link), is_data_(is_data), sink_(sink) {}

  Result<std::byte*> OnHeader(const MessageHeader& header) override {
    if (is_data_ != (header.type == MessageType::kChunk)) {
      return Status::Protocol("a message of type " + std::to_string(static_cast<int>(header.type)) +
                              " on the wrong stream");
    }
    if (!is_data_) {
      const bool is_frame = header.type == MessageType::kFrame;
      if (header.bytes > (is_frame ? kMaxMessageBytes : 0)) {
        return Status::Protocol("a message of " + std::to_string(header.bytes) + " bytes");
      }
      return nullptr;
    }
    auto arrival = transport_.channels_.Begin(from_, header);
    if (!arrival.ok()) return arrival.status();
    return (link_.data_arrival = arrival.TakeValue()).space;
  }

  Status OnMessage(const MessageHeader& header, std::span<const std::byte> payload) override {
    if (is_data_) {
      transport_.channels_.End(link_.data_arrival);
      link_.data_arrival = {};
      return {};
    }
    if (header.type != MessageType::kFrame) return transport_.channels_.OnMessage(from_, header);
    if (!IsControlKind(header.kind)) {
      return Status::Protocol("control frame of unknown kind " +
                              std::to_string(static_cast<int>(header.kind)));
    }
    if (link_.has_goodbye) return Status::Protocol("a frame after its goodbye");
    if (header.kind == FrameKind::kGoodbye) {
      link_.has_goodbye = true;
      link_.goodbye.assign(payload.begin(), payload.end());
      return {};
    }
    ++transport_.counters_.control_frames_received;
    sink_.OnFrame(from_, {header.kind, {header.process_set, header.incarnation}}, payload);
    return {};
  }

 private:
  TcpTransport& transport_;
  const int from_;
  Link& link_;
  const bool is_data_;
  TransportSink& sink_;
};

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(int rank,
                                                           std::map<int, TcpStreams> streams) {
  auto poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<TcpTransport> transport(new TcpTransport(rank, poller.TakeValue()));
  for (auto& [peer, pair] : streams) {
    auto link = std::make_unique<Link>(std::move(*pair.control), std::move(*pair.data));
    HS_RETURN_IF_ERROR(transport->Watch(peer, *link));
    transport->links_[peer] = std::move(link);
  }
  return transport;
}

TcpTransport::TcpTransport(int rank, Poller poller)
    : rank_(rank), poller_(std::move(poller)), channels_(rank_, this, &counters_) {}

Status TcpTransport::Watch(int rank, Link& link) {
  HS_RETURN_IF_ERROR(poller_.Add(link.control.socket.fd(), TagOf(rank, false)));
  return poller_.Add(link.data.socket.fd(), TagOf(rank, true));
}

void TcpTransport::Send(int to_rank, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  Link& link = *links_.at(to_rank);
  if (link.is_over) return;
  ++counters_.control_frames_sent;
  ++counters_.socket_frames_sent;
  counters_.control_bytes_sent += payload.size();
  link.control.out.Add({MessageType::kFrame, header.kind, header.channel.process_set,
                        header.channel.incarnation, static_cast<uint32_t>(payload.size()), 0, 0},
                       payload);
  Flush(to_rank, link, false);
}

void TcpTransport::PostMessage(int to_rank, const MessageHeader& header) {
  Link& link = *links_.at(to_rank);
  if (link.is_over) return;
  link.control.out.Add(header, {});
  Flush(to_rank, link, false);
}

void TcpTransport::PostChunk(int to_rank, const MessageHeader& header,
                             std::span<const std::byte> data,
                             const std::shared_ptr<const void>& memory, uint32_t* pending) {
  Link& link = *links_.at(to_rank);
  if (link.is_over) return;
  counters_.network_bytes_sent += data.size();
  link.data.out.AddFromPlace(header, data, memory, pending);
  Flush(to_rank, link, true);
}

void TcpTransport::Flush(int rank, Link& link, bool is_data) {
  Stream& stream = is_data ? link.data : link.control;
  if (stream.failure.ok() && !stream.is_over) {
    stream.failure = stream.out.Flush(stream.socket).status();
    // The peer may have left: its last data and its goodbye wait to be read. Then comes the end.
    if (!stream.failure.ok()) shutdown(stream.socket.fd(), SHUT_RDWR);
  }
  if (!stream.failure.ok() || stream.is_over) stream.out.Clear();
  const bool awaits_room = !stream.out.empty();
  if (awaits_room == stream.awaits_room || stream.is_over) return;
  stream.awaits_room = awaits_room;
  const auto interest = awaits_room ? Poller::Interest::kReadWrite : Poller::Interest::kRead;
  const Status changed = poller_.Modify(stream.socket.fd(), TagOf(rank, is_data), interest);
  if (!changed.ok()) End(rank, link, changed);
}

bool TcpTransport::Poll(TransportSink& sink) {
  std::array<Poller::Ready, 32> ready;
  const Result<size_t> count = poller_.Wait(0, ready);
  bool moved = false;
  for (size_t i = 0; count.ok() && i < *count; ++i) {
    const int rank = static_cast<int>(ready[i].tag >> 1);
    const bool is_data = (ready[i].tag & 1) != 0;
    Link& link = *links_.at(rank);
    if (ready[i].writable && !link.is_over) {
      Flush(rank, link, is_data);
      moved = true;
    }
    if (ready[i].readable && Receive(rank, link, is_data, sink)) moved = true;
  }
  if (awaits_goodbyes_) EndWithoutGoodbye();
  return (has_news_ && TellLosses(sink)) || moved;
}

bool TcpTransport::Receive(int rank, Link& link, bool is_data, TransportSink& sink) {
  Stream& stream = is_data ? link.data : link.control;
  Arrivals arrivals(*this, rank, link, is_data, sink);
  for (size_t received = 0; received < kReceiveBytes && !link.is_over && !stream.is_over;) {
    const Result<size_t> got = stream.socket.ReceiveSome(stream.in.Room());
    if (!got.ok()) {
      OnStreamOver(rank, link, is_data, stream.failure.ok() ? got.status() : stream.failure);
      return true;
    }
    if (*got == 0) return received > 0;
    received += *got;
    if (Status taken = stream.in.Take(*got, arrivals); !taken.ok()) End(rank, link, taken);
  }
  return true;
}

void TcpTransport::OnStreamOver(int rank, Link& link, bool is_data, const Status& reason) {
  Stream& stream = is_data ? link.data : link.control;
  if (link.is_over || stream.is_over) return;
  stream.is_over = true;
  stream.out.Clear();
  poller_.Remove(stream.socket.fd());
  // A rank that leaves ends its data stream, says goodbye, and ends that stream too.
  const bool may_go_on = is_data ? !link.control.is_over : link.has_goodbye && !link.data.is_over;
  if (!may_go_on) return End(rank, link, reason);
  if (!is_data || link.has_goodbye) return;
  link.goodbye_until = MonotonicSeconds() + kGoodbyeSeconds;
  link.reason = reason;
  awaits_goodbyes_ = true;
}

void TcpTransport::EndWithoutGoodbye() {
  awaits_goodbyes_ = false;
  for (auto& [rank, link] : links_) {
    if (link->is_over || !link->data.is_over || link->has_goodbye) continue;
    if (MonotonicSeconds() < link->goodbye_until) {
      awaits_goodbyes_ = true;
      continue;
    }
    End(rank, *link, Status::Protocol("its data stream ended alone: " + link->reason.message()));
  }
}

void TcpTransport::End(int rank, Link& link, const Status& reason) {
  if (link.is_over) return;
  link.is_over = true;
  has_news_ = true;
  link.reason =
      Status(StatusCode::kRankFailed, link.has_goodbye ? "it closed its link" : reason.message(),
             FailureDetail{{rank}, -1, ""});
  for (Stream* stream : {&link.control, &link.data}) {
    if (!stream->is_over) poller_.Remove(stream->socket.fd());
    stream->is_over = true;
    stream->out.Clear();
  }
}

bool TcpTransport::TellLosses(TransportSink& sink) {
  has_news_ = false;
  bool told = false;
  for (auto& [rank, link] : links_) {
    if (!link->is_over || link->is_told) continue;
    link->is_told = told = true;
    if (link->has_goodbye) {
      ++counters_.control_frames_received;
      sink.OnFrame(rank, {FrameKind::kGoodbye, {}}, link->goodbye);
    }
    sink.OnRankLost(rank, link->reason);
  }
  return told;
}

bool TcpTransport::HasUnsent() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    return !entry.second->control.out.empty() || !entry.second->data.out.empty();
  });
}

Result<std::unique_ptr<MessageExchange>> TcpTransport::Open(ChannelId channel,
                                                            std::span<const int> ranks) {
  return channels_.Open(channel, ranks, [this](int rank) { return links_.contains(rank); }, {});
}

void TcpTransport::Close(std::span<const std::byte> last_frame, const Deadline& deadline) {
  class Nobody final : public TransportSink {
    void OnFrame(int, const FrameHeader&, std::span<const std::byte>) override {}
    void OnRankLost(int, const Status&) override {}
  } nobody;
  for (auto& [rank, link] : links_) {
    if (link->is_over) continue;
    link->control.out.Add({MessageType::kFrame, FrameKind::kGoodbye, 0, 0,
                           static_cast<uint32_t>(last_frame.size()), 0, 0},
                          last_frame);
    Flush(rank, *link, false);
  }
  while (HasUnsent() && !deadline.Passed()) {
    std::array<Poller::Ready, 1> ready;
    (void)poller_.Wait(std::min(deadline.SecondsLeft(), 0.01), ready);
    (void)Poll(nobody);
  }
  for (auto& [rank, link] : links_) {
    // Not close() alone: a forked child of ours may hold the sockets as well.
    shutdown(link->data.socket.fd(), SHUT_WR);
    shutdown(link->control.socket.fd(), SHUT_WR);
  }
}

}  // namespace horoscale
