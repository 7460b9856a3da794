#include "transport/mpi/mpi_transport.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <string>

#include "core/codec.h"
#include "platform/deadline.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

// Sends in flight to one rank; more wait their turn here instead of in MPI.
constexpr size_t kMaxInFlight = 64;
// Messages that one Poll() begins to receive, so that a busy peer can't keep the caller in it.
constexpr int kMaxReceives = 64;
constexpr double kFirstPollSeconds = 50e-6;
constexpr double kLastPollSeconds = 1e-3;
constexpr std::align_val_t kCacheLine{64};

Status LinkOver(int rank, const Status& why) {
  return Status(why.code(), "rank " + std::to_string(rank) + ": " + why.message(),
                FailureDetail{{rank}, -1, ""});
}

bool IsGoodbye(std::span<const std::byte> message) {
  MpiMessageHeader header;
  if (message.size() < sizeof(header)) return false;
  std::memcpy(&header, message.data(), sizeof(header));
  return header.type == MpiMessageType::kFrame && header.kind == FrameKind::kGoodbye;
}

}  // namespace

Result<std::unique_ptr<MpiTransport>> MpiTransport::Create(
    std::unique_ptr<MpiCommunicator> communicator) {
  auto wake = EventFd::Create();
  if (!wake.ok()) return wake.status();
  return std::unique_ptr<MpiTransport>(new MpiTransport(std::move(communicator), wake.TakeValue()));
}

MpiTransport::MpiTransport(std::unique_ptr<MpiCommunicator> communicator, EventFd wake)
    : rank_(communicator->rank()),
      comm_(std::move(communicator)),
      wake_(std::move(wake)),
      links_(static_cast<size_t>(comm_->size())) {}

MpiTransport::~MpiTransport() {
  if (comm_ != nullptr) Abandon();  // it was never closed
  for (auto& [key, channel] : channels_) {
    if (channel.exchange != nullptr) channel.exchange->Orphan();
  }
}

void MpiTransport::Send(int to_rank, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  assert(to_rank != rank());
  if (LinkTo(to_rank).is_over) return;
  ++counters_.control_frames_sent;
  counters_.control_bytes_sent += payload.size();
  PostMessage(to_rank,
              {MpiMessageType::kFrame, header.kind, header.channel.process_set,
               header.channel.incarnation, 0, 0, 0},
              payload);
}

MpiTransport::Outgoing MpiTransport::MakeMessage(const MpiMessageHeader& header,
                                                 std::span<const std::byte> payload) {
  Outgoing message;
  message.tag = kMpiMessageTag;
  message.bytes.resize(sizeof(header) + payload.size());
  std::memcpy(message.bytes.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), message.bytes.begin() + sizeof(header));
  return message;
}

void MpiTransport::PostMessage(int to_rank, const MpiMessageHeader& header,
                               std::span<const std::byte> payload) {
  Enqueue(to_rank, MakeMessage(header, payload));
}

void MpiTransport::PostData(int to_rank, std::span<const std::byte> data,
                            std::shared_ptr<const void> memory, uint32_t* pending) {
  Outgoing message;
  message.tag = kMpiDataTag;
  message.data = data;
  message.memory = std::move(memory);
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
    const int code = call().Iprobe(any, kMpiMessageTag, comm_->handle(), &is_there, &status);
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
        comm_->mpi().Check(call().Irecv(message.bytes.data(), bytes, byte_type(), from,
                                        kMpiMessageTag, comm_->handle(), &message.request),
                           "Irecv");
    if (!begun.ok()) Break(from, begun);
  }
  return found;
}

bool MpiTransport::FinishReceives(int from, Link& link, TransportSink& sink) {
  bool moved = false;
  while (!link.incoming.empty() && !link.is_over && Done(link.incoming.front().request, from)) {
    // The data that it sent before its goodbye may come later, and counts.
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
    const auto channel = channels_.find(data->key);
    if (data->memory != nullptr && channel != channels_.end() &&
        channel->second.exchange != nullptr) {
      channel->second.exchange->OnArrived(data->member, data->round);
    }
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
    sink.OnRankLost(peer, link.reason);
    moved = true;
  }
  return moved;
}

Status MpiTransport::Deliver(int from, std::span<const std::byte> message, TransportSink& sink) {
  MpiMessageHeader header;
  if (message.size() < sizeof(header) || message.size() > sizeof(header) + kMaxMessageBytes) {
    return Status::Protocol("message of " + std::to_string(message.size()) + " bytes");
  }
  std::memcpy(&header, message.data(), sizeof(header));
  const auto payload = message.subspan(sizeof(header));
  if (header.type == MpiMessageType::kFrame) return DeliverFrame(from, header, payload, sink);
  return DeliverToChannel(from, header, payload);
}

Status MpiTransport::DeliverFrame(int from, const MpiMessageHeader& header,
                                  std::span<const std::byte> payload, TransportSink& sink) {
  switch (header.kind) {
    case FrameKind::kReport:
    case FrameKind::kPlan:
    case FrameKind::kGoodbye:
    case FrameKind::kPoison:
    case FrameKind::kStall:
    case FrameKind::kProbe:
      break;
    default:
      return Status::Protocol("control frame of unknown kind " +
                              std::to_string(static_cast<int>(header.kind)));
  }
  ++counters_.control_frames_received;
  sink.OnFrame(from, {header.kind, {header.process_set, header.incarnation}}, payload);
  return {};
}

Status MpiTransport::DeliverToChannel(int from, const MpiMessageHeader& header,
                                      std::span<const std::byte> payload) {
  const Key key = {header.process_set, header.incarnation};
  if (header.type == MpiMessageType::kOpened) {
    Channel& channel = channels_[key];
    channel.opened.insert(from);
    if (channel.is_closed && channel.opened.size() + 1 == channel.ranks.size()) {
      channels_.erase(key);
      return {};
    }
    if (channel.exchange == nullptr) return {};
  }
  const auto at = channels_.find(key);
  MpiExchange* const exchange = at == channels_.end() ? nullptr : at->second.exchange;
  uint32_t member = 0;
  if (exchange != nullptr) {
    const std::vector<int>& ranks = at->second.ranks;
    const auto position = std::lower_bound(ranks.begin(), ranks.end(), from);
    if (position == ranks.end() || *position != from) {
      return Status::Protocol("a message for process set " + std::to_string(key.first) +
                              " from a rank outside it");
    }
    member = static_cast<uint32_t>(position - ranks.begin());
  }
  switch (header.type) {
    case MpiMessageType::kOpened:
      exchange->OnOpened(member);
      return {};
    case MpiMessageType::kReleased:
      if (exchange != nullptr) exchange->OnReleased(member, header.round);
      return {};
    case MpiMessageType::kAnnounce:
      return BeginData(from, header, exchange, member);
    case MpiMessageType::kChunk: {
      if (exchange == nullptr) return {};
      std::byte* const space = exchange->Accept(member, header);
      if (space == nullptr || header.bytes != payload.size()) {
        return Status::Protocol("a chunk for which there is no space");
      }
      std::copy(payload.begin(), payload.end(), space);
      exchange->OnArrived(member, header.round);
      return {};
    }
    default:
      return Status::Protocol("message of unknown type");
  }
}

Status MpiTransport::BeginData(int from, const MpiMessageHeader& header, MpiExchange* exchange,
                               uint32_t member) {
  IncomingData& data = LinkTo(from).data.emplace_back();
  data.key = {header.process_set, header.incarnation};
  data.member = member;
  data.round = header.round;
  std::byte* space = nullptr;
  if (exchange != nullptr) {
    space = exchange->Accept(member, header);
    data.memory = exchange->memory();
  } else if (header.bytes <= MpiExchange::kChunkBytes) {
    data.nowhere.resize(header.bytes);
    space = data.nowhere.data();
  }
  if (space == nullptr) {
    LinkTo(from).data.pop_back();
    return Status::Protocol("a chunk for which there is no space");
  }
  return comm_->mpi().Check(call().Irecv(space, static_cast<int>(header.bytes), byte_type(), from,
                                         kMpiDataTag, comm_->handle(), &data.request),
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
  assert(std::is_sorted(ranks.begin(), ranks.end()));
  const Key key = {id.process_set, id.incarnation};
  Channel& channel = channels_[key];
  if (channel.exchange != nullptr) {
    return Status::InvalidArgument("process set " + std::to_string(id.process_set) +
                                   " has been opened before");
  }
  const auto self = std::lower_bound(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  auto exchange = MpiExchange::Create(id, ranks, static_cast<uint32_t>(self), this, &counters_,
                                      [this, key] { CloseChannel(key); });
  if (exchange == nullptr) return Status::System("allocating the banks of a process set", ENOMEM);
  channel.ranks.assign(ranks.begin(), ranks.end());
  channel.exchange = exchange.get();
  for (uint32_t m = 0; m < ranks.size(); ++m) {
    if (ranks[m] == rank()) continue;
    if (channel.opened.contains(ranks[m])) exchange->OnOpened(m);
    PostMessage(
        ranks[m],
        {MpiMessageType::kOpened, FrameKind::kBank, id.process_set, id.incarnation, 0, 0, 0}, {});
  }
  return std::unique_ptr<Exchange>(std::move(exchange));
}

void MpiTransport::CloseChannel(Key key) {
  Channel& channel = channels_.at(key);
  channel.exchange = nullptr;
  channel.is_closed = true;
  // Kept until all have opened it: their messages must not look like those of a new channel.
  if (channel.opened.size() + 1 == channel.ranks.size()) channels_.erase(key);
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

void MpiTransport::Sleep(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  double pause = kFirstPollSeconds;
  while (!SomethingIsThere() && !deadline.Passed()) {
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
  void* const memory = ::operator new(std::max<size_t>(bytes, 1), kCacheLine, std::nothrow);
  if (memory == nullptr) {
    return Status::System("allocating " + std::to_string(bytes) + " bytes", ENOMEM);
  }
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

void MpiTransport::FreeShared(std::byte* memory) { ::operator delete(memory, kCacheLine); }

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

// A communicator is freed only when nothing can be on the way in it any more: its number may be
// used again, and late messages would come out of the next one. So the peers' goodbyes are awaited
// too; where they don't come in time, the communicator stays until MPI is finalized.
void MpiTransport::Close(std::span<const std::byte> last_frame, double seconds) {
  class Nobody final : public TransportSink {
    void OnFrame(int, const FrameHeader&, std::span<const std::byte>) override {}
    void OnRankLost(int, const Status&) override {}
  } nobody;
  const Deadline deadline = Deadline::After(seconds);
  const MpiMessageHeader header = {MpiMessageType::kFrame, FrameKind::kGoodbye, 0, 0, 0, 0, 0};
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

// What MPI may still read and write has to live as long as the process.
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
