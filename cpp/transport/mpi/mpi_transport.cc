#include "transport/mpi/mpi_transport.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

#include "base/aligned_memory.h"
#include "core/codec.h"
#include "platform/deadline.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

constexpr int kMessageTag = 1;
constexpr int kDataTag = 2;
// Smaller chunks are sent inline, which costs a copy and saves a message.
constexpr size_t kInlineBytes = 8 << 10;
// Sends in flight per rank; further ones are queued here instead of in MPI.
constexpr size_t kMaxInFlight = 64;
// Receives that one Poll() starts, so that a busy peer can't block the caller.
constexpr int kMaxReceives = 64;
// MPICH may detect an arrived small message only when polled again: 2 ms instead of 18 µs.
constexpr int kLooksBeforeSleep = 4;
constexpr double kFirstPollSeconds = 50e-6;
constexpr double kLastPollSeconds = 1e-3;

Status LinkOver(int rank, const Status& why) {
  return Status(why.code(), "rank " + std::to_string(rank) + ": " + why.message(),
                FailureDetail{{rank}, -1, ""});
}

bool IsGoodbye(std::span<const std::byte> message) {
  MessageHeader header;
  if (message.size() < sizeof(header)) return false;
  std::memcpy(&header, message.data(), sizeof(header));
  return header.type == MessageType::kFrame && header.kind == FrameKind::kGoodbye;
}

}  // namespace

Result<std::unique_ptr<MpiTransport>> MpiTransport::Create(
    std::unique_ptr<MpiCommunicator> communicator, std::vector<uint32_t> hosts) {
  auto wake = EventFd::Create();
  if (!wake.ok()) return wake.status();
  return std::unique_ptr<MpiTransport>(
      new MpiTransport(std::move(communicator), std::move(hosts), wake.TakeValue()));
}

MpiTransport::MpiTransport(std::unique_ptr<MpiCommunicator> communicator,
                           std::vector<uint32_t> hosts, EventFd wake)
    : rank_(communicator->rank()),
      hosts_(std::move(hosts)),
      comm_(std::move(communicator)),
      wake_(std::move(wake)),
      links_(static_cast<size_t>(comm_->size())),
      channels_(rank_, this, &counters_) {}

MpiTransport::~MpiTransport() {
  if (comm_ != nullptr) Abandon();  // it was never closed
}

void MpiTransport::Send(int to_rank, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  assert(to_rank != rank());
  if (LinkTo(to_rank).is_over) return;
  ++counters_.control_frames_sent;
  counters_.control_bytes_sent += payload.size();
  const MessageHeader message = {MessageType::kFrame,
                                 header.kind,
                                 header.channel.process_set,
                                 header.channel.incarnation,
                                 0,
                                 0,
                                 0,
                                 0,
                                 0,
                                 0};
  Enqueue(to_rank, MakeMessage(message, payload));
}

MpiTransport::Outgoing MpiTransport::MakeMessage(const MessageHeader& header,
                                                 std::span<const std::byte> payload) {
  Outgoing message;
  message.tag = kMessageTag;
  message.bytes.resize(sizeof(header) + payload.size());
  std::memcpy(message.bytes.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), message.bytes.begin() + sizeof(header));
  return message;
}

void MpiTransport::PostMessage(int to_rank, const MessageHeader& header) {
  Enqueue(to_rank, MakeMessage(header, {}));
}

void MpiTransport::PostChunk(int to_rank, const MessageHeader& header,
                             std::span<const std::byte> data,
                             const std::shared_ptr<const void>& memory, uint32_t* pending) {
  if (data.size() <= kInlineBytes) return Enqueue(to_rank, MakeMessage(header, data));
  MessageHeader announce = header;
  announce.type = MessageType::kAnnounce;
  Enqueue(to_rank, MakeMessage(announce, {}));
  Outgoing message;
  message.tag = kDataTag;
  message.data = data;
  message.memory = memory;
  message.pending = pending;
  ++*pending;
  Enqueue(to_rank, std::move(message));
}

void MpiTransport::Enqueue(int to_rank, Outgoing message, bool is_goodbye) {
  Link& link = LinkTo(to_rank);
  if (link.is_broken || (link.is_over && !is_goodbye)) {
    if (message.pending != nullptr) --*message.pending;
    return;
  }
  link.waiting.push_back(std::move(message));
  BeginSends(to_rank, link);
}

void MpiTransport::BeginSends(int to_rank, Link& link) {
  while (!link.waiting.empty() && link.in_flight.size() < kMaxInFlight && !link.is_broken) {
    link.in_flight.push_back(std::move(link.waiting.front()));
    link.waiting.pop_front();
    Outgoing& message = link.in_flight.back();
    const std::span<const std::byte> bytes =
        message.pending != nullptr ? message.data : std::span<const std::byte>(message.bytes);
    const Status sent =
        comm_->mpi().Check(call().Isend(bytes.data(), static_cast<int>(bytes.size()), byte_type(),
                                        to_rank, message.tag, comm_->handle(), &message.request),
                           "Isend");
    if (!sent.ok()) Break(to_rank, sent);
  }
}

bool MpiTransport::Done(MpiHandle& request, int rank) {
  int done = 0;
  MpiStatus status;
  const Status tested = comm_->mpi().Check(call().Test(&request, &done, &status), "Test");
  if (!tested.ok()) Break(rank, tested);
  return tested.ok() && done != 0;
}

bool MpiTransport::FinishSends(int to_rank, Link& link) {
  bool moved = false;
  for (auto message = link.in_flight.begin(); message != link.in_flight.end() && !link.is_broken;) {
    if (!Done(message->request, to_rank)) {
      ++message;
      continue;
    }
    if (message->pending != nullptr) --*message->pending;
    message = link.in_flight.erase(message);
    moved = true;
  }
  BeginSends(to_rank, link);
  return moved;
}

bool MpiTransport::BeginReceives() {
  bool found = false;
  for (int i = 0; i < kMaxReceives; ++i) {
    int is_there = 0;
    MpiStatus status;
    const int any = comm_->mpi().constants().any_source;
    const int code = call().Iprobe(any, kMessageTag, comm_->handle(), &is_there, &status);
    if (code != 0 || is_there == 0) break;
    found = true;
    int from = 0;
    int bytes = 0;
    std::memcpy(&from, status.bytes + comm_->mpi().constants().status_source, sizeof(from));
    call().Get_count(&status, byte_type(), &bytes);
    Link& link = LinkTo(from);
    Incoming& message = link.incoming.emplace_back();
    message.bytes.resize(static_cast<size_t>(std::max(bytes, 0)));
    const Status begun =
        comm_->mpi().Check(call().Irecv(message.bytes.data(), bytes, byte_type(), from, kMessageTag,
                                        comm_->handle(), &message.request),
                           "Irecv");
    if (!begun.ok()) Break(from, begun);
  }
  return found;
}

bool MpiTransport::FinishReceives(int from, Link& link, TransportSink& sink) {
  bool moved = false;
  while (!link.incoming.empty() && !link.is_over && Done(link.incoming.front().request, from)) {
    // Data that was sent before the goodbye may arrive later, and must be delivered.
    if (IsGoodbye(link.incoming.front().bytes) && !link.data.empty()) break;
    moved = true;
    const Incoming message = std::move(link.incoming.front());
    link.incoming.pop_front();
    const Status taken = Deliver(from, message.bytes, sink);
    if (!taken.ok()) Break(from, taken);
    if (taken.ok() && IsGoodbye(message.bytes)) {
      End(from, {StatusCode::kRankFailed, "it closed its link"});
    }
  }
  return moved;
}

bool MpiTransport::FinishData(int from, Link& link) {
  bool moved = false;
  for (auto data = link.data.begin(); data != link.data.end() && !link.is_over;) {
    if (!Done(data->request, from)) {
      ++data;
      continue;
    }
    moved = true;
    channels_.End(data->arrival);
    data = link.data.erase(data);
  }
  return moved;
}

bool MpiTransport::Poll(TransportSink& sink) {
  bool moved = BeginReceives();
  for (int peer = 0; peer < size(); ++peer) {
    Link& link = LinkTo(peer);
    if (peer == rank()) continue;
    if (FinishSends(peer, link)) moved = true;
    if (FinishData(peer, link)) moved = true;
    if (FinishReceives(peer, link, sink)) moved = true;
    if (!link.is_over || link.is_lost) continue;
    link.is_lost = true;
    channels_.OnRankLost(peer);
    sink.OnRankLost(peer, link.reason);
    moved = true;
  }
  channels_.OnPolled();
  return moved;
}

Status MpiTransport::Deliver(int from, std::span<const std::byte> message, TransportSink& sink) {
  MessageHeader header;
  if (message.size() < sizeof(header) || message.size() > sizeof(header) + kMaxMessageBytes) {
    return Status::Protocol("message of invalid size: " + std::to_string(message.size()) +
                            " bytes");
  }
  std::memcpy(&header, message.data(), sizeof(header));
  const auto payload = message.subspan(sizeof(header));
  if (header.type == MessageType::kFrame) return DeliverFrame(from, header, payload, sink);
  return DeliverToChannel(from, header, payload, sink);
}

Status MpiTransport::DeliverFrame(int from, const MessageHeader& header,
                                  std::span<const std::byte> payload, TransportSink& sink) {
  switch (header.kind) {
    case FrameKind::kReport:
    case FrameKind::kPlan:
    case FrameKind::kGoodbye:
    case FrameKind::kPoison:
    case FrameKind::kStall:
    case FrameKind::kProbe:
    case FrameKind::kLaunch:
    case FrameKind::kGroupReport:
    case FrameKind::kPost:
    case FrameKind::kMessage:
    case FrameKind::kCreation:
      break;
    default:
      return Status::Protocol("control frame of unknown kind " +
                              std::to_string(static_cast<int>(header.kind)));
  }
  ++counters_.control_frames_received;
  sink.OnFrame(from, {header.kind, {header.process_set, header.incarnation}}, payload);
  return {};
}

Status MpiTransport::DeliverToChannel(int from, const MessageHeader& header,
                                      std::span<const std::byte> payload,
                                      const TransportSink& sink) {
  if (header.type == MessageType::kAnnounce) return BeginData(from, header);
  if (header.type != MessageType::kChunk) {
    return channels_.OnMessage(from, header, sink.IsOver({header.process_set, header.incarnation}));
  }
  if (header.bytes != payload.size()) {
    return Status::Protocol("the size of a chunk differs from its header");
  }
  const auto arrival = channels_.Begin(from, header);
  if (!arrival.ok()) return arrival.status();
  if (arrival->space == nullptr) return {};
  std::copy(payload.begin(), payload.end(), arrival->space);
  channels_.End(*arrival);
  return {};
}

Status MpiTransport::BeginData(int from, const MessageHeader& header) {
  auto arrival = channels_.Begin(from, header);
  if (!arrival.ok()) return arrival.status();
  IncomingData& data = LinkTo(from).data.emplace_back();
  data.arrival = arrival.TakeValue();
  std::byte* space = data.arrival.space;
  if (space == nullptr) {
    data.nowhere.resize(header.bytes);
    space = data.nowhere.data();
  }
  return comm_->mpi().Check(call().Irecv(space, static_cast<int>(header.bytes), byte_type(), from,
                                         kDataTag, comm_->handle(), &data.request),
                            "Irecv");
}

void MpiTransport::End(int rank, const Status& reason) {
  Link& link = LinkTo(rank);
  if (link.is_over) return;
  link.is_over = true;
  link.reason = LinkOver(rank, reason);
  for (Outgoing& message : link.waiting) {
    if (message.pending != nullptr) --*message.pending;
  }
  link.waiting.clear();
}

void MpiTransport::Break(int rank, const Status& reason) {
  End(rank, reason);
  LinkTo(rank).is_broken = true;
}

bool MpiTransport::HasUnsent() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) {
    return !link.is_broken && !(link.waiting.empty() && link.in_flight.empty());
  });
}

Result<std::unique_ptr<Exchange>> MpiTransport::Open(ChannelId id, std::span<const int> ranks) {
  auto exchange =
      channels_.Open(id, ranks, [this](int rank) { return rank != this->rank(); }, HostsOf(ranks));
  if (!exchange.ok()) return exchange.status();
  return std::unique_ptr<Exchange>(exchange.TakeValue());
}

bool MpiTransport::SomethingIsThere() {
  bool moved = BeginReceives();
  for (int peer = 0; peer < size(); ++peer) {
    Link& link = LinkTo(peer);
    if (peer == rank()) continue;
    if (FinishSends(peer, link)) moved = true;
    if (FinishData(peer, link)) moved = true;
    if (!link.is_over && !link.incoming.empty()) moved = true;
  }
  return moved;
}

bool MpiTransport::SomethingIsThereSoon() {
  for (int look = 0; look < kLooksBeforeSleep; ++look) {
    if (SomethingIsThere()) return true;
  }
  return false;
}

void MpiTransport::Sleep(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  double pause = kFirstPollSeconds;
  while (!SomethingIsThereSoon() && !deadline.Passed()) {
    pollfd fd = {wake_.fd(), POLLIN, 0};
    const timespec time = ToTimespec(std::min(pause, deadline.SecondsLeft()));
    if (ppoll(&fd, 1, &time, nullptr) > 0) {
      wake_.Drain();
      return;
    }
    pause = std::min(2 * pause, kLastPollSeconds);
  }
}

Result<std::byte*> MpiTransport::AllocateShared(size_t bytes) {
  AlignedMemory memory = AllocateAligned(bytes);
  if (memory == nullptr) {
    return Status::System("allocating " + std::to_string(bytes) + " bytes", ENOMEM);
  }
  return memory.release();
}

void MpiTransport::FreeShared(std::byte* memory) { AlignedDelete()(memory); }

bool MpiTransport::IsQuiet() const {
  for (int peer = 0; peer < size(); ++peer) {
    const Link& link = links_[static_cast<size_t>(peer)];
    if (peer == rank()) continue;
    if (!link.is_over || link.is_broken || !link.waiting.empty() || !link.in_flight.empty() ||
        !link.incoming.empty() || !link.data.empty()) {
      return false;
    }
  }
  return true;
}

// A communicator is freed only when no messages can be in flight: its number may be reused, and
// late messages would arrive in the next communicator. So the peers' goodbyes are awaited too. If
// they do not arrive in time, the communicator is kept until MPI is finalized.
void MpiTransport::Close(std::span<const std::byte> last_frame, double seconds) {
  NoSink nobody;
  const Deadline deadline = Deadline::After(seconds);
  const MessageHeader header = {MessageType::kFrame, FrameKind::kGoodbye, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) Enqueue(peer, MakeMessage(header, last_frame), true);
  }
  while (!IsQuiet() && !deadline.Passed()) {
    if (!Poll(nobody)) Sleep(deadline.SecondsLeft());
  }
  if (IsQuiet()) {
    comm_.reset();
  } else {
    Abandon();
  }
}

// Memory that MPI may still access must live as long as the process.
void MpiTransport::Abandon() {
  (void)comm_.release();
  for (Link& link : links_) {
    auto* const kept = new Link(std::move(link));
    (void)kept;
    link = Link();
    link.is_over = link.is_lost = link.is_broken = true;
  }
}

}  // namespace horoscale
