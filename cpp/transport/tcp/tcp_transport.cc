#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "core/codec.h"
#include "platform/clock.h"
#include "platform/tcp_rate.h"
#include "platform/tcp_socket.h"

namespace horoscale {
namespace {

// Limit per stream and Poll(), so that a busy peer can't block the caller.
constexpr size_t kReceiveBytes = 1 << 20;

// A leaving rank has sent everything before one of its streams closes; lost packets may delay data
// on the others by this time. At most a tenth of the silence timeout, part of which has already
// passed.
constexpr double kLastWordsSeconds = 3;
constexpr double kLastWordsShare = 0.1;
constexpr double kLastWordsSecondsAtMost = 30;

// Many frames are received at a time. Chunks are received in place, except for the data that is
// received with their headers, which is a complete small chunk, so that it needs one call.
constexpr size_t kControlBufferBytes = 64 << 10;
constexpr size_t kDataBufferBytes = 4 << 10;

// Minimum size of a chunk's part; smaller ones are not worth a separate message.
constexpr size_t kLeastPartBytes = 16 << 10;

// The tag of the maker of links in the poller; the others are places.
constexpr uint64_t kMakerTag = ~uint64_t{0};
constexpr int kNumberBits = 8;
uint64_t TagOf(int rank, size_t number) {
  return static_cast<uint64_t>(rank) << kNumberBits | number;
}

std::pair<int, size_t> PlaceOf(uint64_t tag) {
  return {static_cast<int>(tag >> kNumberBits), tag % (1 << kNumberBits)};
}

bool IsControlKind(FrameKind kind) {
  switch (kind) {
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
      return true;
    case FrameKind::kBank:
      return false;
  }
  return false;
}

}  // namespace

// Handles the messages of one stream.
class TcpTransport::Arrivals final : public MessageReader::Handler {
 public:
  Arrivals(TcpTransport& transport, int from, Link& link, size_t number, TransportSink& sink)
      : transport_(transport),
        from_(from),
        link_(link),
        stream_(link.streams[number]),
        is_data_(number != kControl),
        sink_(sink) {}

  Result<std::byte*> OnHeader(const MessageHeader& header) override {
    if (is_data_ != (header.type == MessageType::kChunk)) {
      return Status::Protocol("a message of type " + std::to_string(static_cast<int>(header.type)) +
                              " on the wrong stream");
    }
    if (!is_data_) {
      const bool is_frame = header.type == MessageType::kFrame;
      if (header.bytes > (is_frame ? kMaxMessageBytes : 0)) {
        return Status::Protocol("message of invalid size: " + std::to_string(header.bytes) +
                                " bytes");
      }
      return nullptr;
    }
    auto arrival = transport_.channels_.Begin(from_, header);
    if (!arrival.ok()) return arrival.status();
    return (stream_.arrival = arrival.TakeValue()).space;
  }

  Status OnMessage(const MessageHeader& header, std::span<const std::byte> payload) override {
    if (is_data_) {
      transport_.channels_.End(std::exchange(stream_.arrival, {}));
      return {};
    }
    if (header.type != MessageType::kFrame) {
      const ChannelId channel{header.process_set, header.incarnation};
      return transport_.channels_.OnMessage(from_, header, sink_.IsOver(channel));
    }
    if (!IsControlKind(header.kind)) {
      return Status::Protocol("control frame of unknown kind " +
                              std::to_string(static_cast<int>(header.kind)));
    }
    if (link_.has_goodbye) return Status::Protocol("it sent a frame after its goodbye");
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
  Stream& stream_;
  const bool is_data_;
  TransportSink& sink_;
};

TcpTransport::Stream::Stream(ByteStream stream, size_t buffer_bytes)
    : socket(std::move(stream)),
      in(buffer_bytes,
         socket.message_keys() ? std::optional(socket.message_keys()->receive) : std::nullopt),
      out(socket.message_keys() ? std::optional(socket.message_keys()->send) : std::nullopt) {}

void TcpTransport::Link::Open(TcpStreams sockets, bool all_streams) {
  choice.emplace(sockets.size() - 1, all_streams);
  for (ByteStream& socket : sockets) {
    streams.emplace_back(std::move(socket),
                         streams.empty() ? kControlBufferBytes : kDataBufferBytes);
  }
}

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(int rank, TcpMesh mesh,
                                                           double silence_seconds,
                                                           bool all_streams) {
  auto poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<TcpTransport> transport(new TcpTransport(
      rank, silence_seconds, all_streams, std::move(mesh.maker), poller.TakeValue()));
  if (transport->maker_ != nullptr) {
    HS_RETURN_IF_ERROR(transport->poller_.Add(transport->maker_->fd(), kMakerTag));
  }
  for (auto& [peer, sockets] : mesh.links) {
    HS_RETURN_IF_ERROR(transport->AddLink(peer, std::move(sockets)));
  }
  return transport;
}

TcpTransport::TcpTransport(int rank, double silence_seconds, bool all_streams,
                           std::unique_ptr<TcpLinkMaker> maker, Poller poller)
    : rank_(rank),
      last_words_seconds_(std::min(kLastWordsSeconds, kLastWordsShare * silence_seconds)),
      all_streams_(all_streams),
      maker_(std::move(maker)),
      poller_(std::move(poller)),
      channels_(rank_, this, &counters_) {}

Status TcpTransport::Watch(int rank, Link& link) {
  for (size_t number = 0; number < link.streams.size(); ++number) {
    const ByteStream& socket = link.streams[number].socket;
    HS_RETURN_IF_ERROR(poller_.Add(socket.fd(), TagOf(rank, number)));
    if (socket.HasPending()) unread_.push_back(TagOf(rank, number));
  }
  return WatchEnd(link.streams[kControl].socket.fd(), Poller::Interest::kEndOnce);
}

void TcpTransport::Send(int to_rank, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  Link& link = FindOrReach(to_rank);
  if (link.is_over) return;
  ++counters_.control_frames_sent;
  ++counters_.socket_frames_sent;
  counters_.control_bytes_sent += payload.size();
  Post(to_rank, link,
       {MessageType::kFrame, header.kind, header.channel.process_set, header.channel.incarnation,
        static_cast<uint32_t>(payload.size()), 0, 0, 0, 0, 0},
       payload);
}

void TcpTransport::PostMessage(int to_rank, const MessageHeader& header) {
  Link& link = FindOrReach(to_rank);
  if (!link.is_over) Post(to_rank, link, header, {});
}

void TcpTransport::Post(int to_rank, Link& link, const MessageHeader& header,
                        std::span<const std::byte> payload) {
  if (link.streams.empty()) {
    link.unsent.push_back({header, {payload.begin(), payload.end()}});
    return;
  }
  link.streams[kControl].out.Add(header, payload);
  Flush(to_rank, link, kControl);
}

std::vector<std::pair<int, uint64_t>> TcpTransport::LinkBytes() const {
  std::vector<std::pair<int, uint64_t>> sent;
  for (const auto& [rank, link] : links_) {
    if (link->bytes_sent > 0) sent.emplace_back(rank, link->bytes_sent);
  }
  return sent;
}

void TcpTransport::PostChunk(int to_rank, const MessageHeader& header,
                             std::span<const std::byte> data,
                             const std::shared_ptr<const void>& memory, uint32_t* pending) {
  Link& link = *links_.at(to_rank);
  if (link.is_over) return;
  counters_.network_bytes_sent += data.size();
  link.bytes_sent += data.size();
  if (link.choice->IsDue(data.size())) LookAtRates(link);
  // Every stream carries a part, so that no chunk shares the network with a later one, which would
  // delay it and, in turn, the peer's next chunk (see docs/algorithms.md).
  const size_t parts = std::clamp<size_t>(data.size() / kLeastPartBytes, 1, link.choice->used());
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = data.size() * part / parts;
    const size_t end = data.size() * (part + 1) / parts;
    MessageHeader of_part = header;
    of_part.offset += static_cast<uint32_t>(begin);
    of_part.bytes = static_cast<uint32_t>(end - begin);
    of_part.part = static_cast<uint16_t>(part);
    of_part.others = static_cast<uint8_t>(parts - 1);
    link.streams[1 + part].out.AddFromPlace(of_part, data.subspan(begin, end - begin), memory,
                                            pending);
  }
  for (size_t part = 0; part < parts; ++part) Flush(to_rank, link, 1 + part);
}

void TcpTransport::MoveChunk(const uint32_t* pending, const std::byte* from, const std::byte* to) {
  for (auto& [rank, link] : links_) {
    for (Stream& stream : link->streams) stream.out.Move(pending, from, to);
  }
}

void TcpTransport::LookAtRates(Link& link) {
  std::array<double, MessageExchange::kMaxParts> rates{};
  for (size_t i = 0; i < link.choice->used(); ++i) {
    rates[i] = DeliveryRate(link.streams[1 + i].socket);
  }
  link.choice->OnRates(rates);
}

void TcpTransport::Flush(int rank, Link& link, size_t number) {
  Stream& stream = link.streams[number];
  if (stream.failure.ok() && !stream.is_over) {
    stream.failure = stream.out.Flush(stream.socket).status();
    // The peer may have left: its last data and its goodbye must be read before the end of the
    // stream.
    if (!stream.failure.ok()) shutdown(stream.socket.fd(), SHUT_RDWR);
  }
  if (!stream.failure.ok() || stream.is_over) stream.out.Clear();
  const bool awaits_room = !stream.out.empty();
  if (awaits_room == stream.awaits_room || stream.is_over) return;
  stream.awaits_room = awaits_room;
  const auto interest = awaits_room ? Poller::Interest::kReadWrite : Poller::Interest::kRead;
  const Status changed = poller_.Modify(stream.socket.fd(), TagOf(rank, number), interest);
  if (!changed.ok()) End(rank, link, changed);
}

bool TcpTransport::Poll(TransportSink& sink) {
  std::array<Poller::Ready, 32> ready;
  const Result<size_t> count = poller_.Wait(0, ready);
  bool moved = ReceiveUnread(sink);
  for (size_t i = 0; count.ok() && i < *count; ++i) {
    if (ready[i].tag == kMakerTag) {
      TakeLinks();
      moved = true;
      continue;
    }
    const auto [rank, number] = PlaceOf(ready[i].tag);
    Link& link = *links_.at(rank);
    if (ready[i].writable && !link.is_over) {
      Flush(rank, link, number);
      moved = true;
    }
    if (ready[i].readable && Receive(rank, link, number, sink)) moved = true;
  }
  if (awaits_ends_) EndTheSilent();
  channels_.OnPolled();
  return (has_news_ && TellLosses(sink)) || moved;
}

bool TcpTransport::ReceiveUnread(TransportSink& sink) {
  bool moved = false;
  for (const uint64_t tag : std::exchange(unread_, {})) {
    const auto [rank, number] = PlaceOf(tag);
    moved |= Receive(rank, *links_.at(rank), number, sink);
  }
  return moved;
}

bool TcpTransport::Receive(int rank, Link& link, size_t number, TransportSink& sink) {
  Stream& stream = link.streams[number];
  Arrivals arrivals(*this, rank, link, number, sink);
  for (size_t received = 0; received < kReceiveBytes && !link.is_over && !stream.is_over;) {
    const auto room = stream.in.Room();
    const Result<size_t> got = stream.socket.ReceiveSome(room);
    if (!got.ok()) {
      OnStreamOver(rank, link, number, stream.failure.ok() ? got.status() : stream.failure);
      return true;
    }
    if (*got == 0) return received > 0;
    received += *got;
    if (link.awaits_end) {
      link.end_by = std::min(MonotonicSeconds() + last_words_seconds_, link.end_at_most);
    }
    if (Status taken = stream.in.Take(*got, arrivals); !taken.ok()) End(rank, link, taken);
    if (*got < room[0].size() + room[1].size()) break;  // that was all
  }
  // The caller knows that there was progress, and polls again before it sleeps.
  const uint64_t tag = TagOf(rank, number);
  const bool is_known = std::find(unread_.begin(), unread_.end(), tag) != unread_.end();
  if (!stream.is_over && stream.socket.HasPending() && !is_known) unread_.push_back(tag);
  return true;
}

void TcpTransport::OnStreamOver(int rank, Link& link, size_t number, const Status& reason) {
  Stream& stream = link.streams[number];
  if (link.is_over || stream.is_over) return;
  stream.is_over = true;
  stream.out.Clear();
  poller_.Remove(stream.socket.fd());
  // A leaving rank sends a goodbye and closes all of its streams, which is seen in any order.
  const bool all_over = std::all_of(link.streams.begin(), link.streams.end(),
                                    [](const Stream& other) { return other.is_over; });
  if (all_over || (number == kControl && !link.has_goodbye)) return End(rank, link, reason);
  if (link.awaits_end) return;
  link.reason = Status::Protocol("its data stream " + std::to_string(number) + " of " +
                                 std::to_string(link.streams.size() - 1) +
                                 " was closed, but not the others: " + reason.message());
  AwaitEnd(link, kLastWordsSecondsAtMost);
}

void TcpTransport::AwaitEnd(Link& link, double seconds_at_most) {
  link.awaits_end = awaits_ends_ = true;
  link.end_by = MonotonicSeconds() + last_words_seconds_;
  link.end_at_most = MonotonicSeconds() + seconds_at_most;
}

// The other streams may stay silent and never close if the network fails now.
void TcpTransport::EndTheSilent() {
  awaits_ends_ = false;
  for (auto& [rank, link] : links_) {
    if (link->is_over || !link->awaits_end) continue;
    if (MonotonicSeconds() < link->end_by) {
      awaits_ends_ = true;
    } else {
      End(rank, *link, Status(link->reason));
    }
  }
}

void TcpTransport::End(int rank, Link& link, const Status& reason) {
  if (link.is_over) return;
  link.is_over = true;
  has_news_ = true;
  const StatusCode code = link.is_unreached ? StatusCode::kTimeout : StatusCode::kRankFailed;
  link.reason = Status(code, link.has_goodbye ? "it closed its link" : reason.message(),
                       FailureDetail{{rank}, -1, ""});
  for (Stream& stream : link.streams) {
    if (!stream.is_over) {
      poller_.Remove(stream.socket.fd());
      Abort(stream.socket);  // notifies the peer
    }
    stream.is_over = true;
    stream.out.Clear();
  }
  link.unsent.clear();
  if (maker_ != nullptr) maker_->Forget(rank);
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
    channels_.OnRankLost(rank);
    sink.OnRankLost(rank, link->reason);
  }
  return told;
}

bool TcpTransport::HasUnsent() const {
  if (waiting_chunks > 0) return true;
  return std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    if (!entry.second->unsent.empty()) return true;
    const std::deque<Stream>& streams = entry.second->streams;
    return std::any_of(streams.begin(), streams.end(),
                       [](const Stream& stream) { return !stream.out.empty(); });
  });
}

Result<std::unique_ptr<MessageExchange>> TcpTransport::Open(
    ChannelId channel, std::span<const int> ranks, const std::function<bool(int)>& is_near) {
  const auto is_served = [&](int rank) { return rank != rank_ && (!is_near || !is_near(rank)); };
  return channels_.Open(channel, ranks, is_served, {});
}

void TcpTransport::Close(std::span<const std::byte> last_frame, const Deadline& deadline) {
  NoSink nobody;
  const auto poll_while = [&](const auto& condition) {
    while (condition() && !deadline.Passed()) {
      std::array<Poller::Ready, 1> ready;
      (void)poller_.Wait(std::min(deadline.SecondsLeft(), 0.01), ready);
      (void)Poll(nobody);
    }
  };
  if (maker_ != nullptr) {
    maker_->Stop();
    TakeLinks();
  }
  for (auto& [rank, link] : links_) {
    if (link->is_over || link->streams.empty()) continue;
    link->streams[kControl].out.Add({MessageType::kFrame, FrameKind::kGoodbye, 0, 0,
                                     static_cast<uint32_t>(last_frame.size()), 0, 0, 0, 0, 0},
                                    last_frame);
    Flush(rank, *link, kControl);
  }
  poll_while([this] { return HasUnsent(); });
  for (auto& [rank, link] : links_) {
    // shutdown() as well as close(), because a forked child may also hold the sockets.
    for (const Stream& stream : link->streams) shutdown(stream.socket.fd(), SHUT_WR);
  }
}

}  // namespace horoscale
