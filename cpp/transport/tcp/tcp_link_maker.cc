#include "transport/tcp/tcp_link_maker.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "platform/log.h"

namespace horoscale {
namespace {

// Initial pause between attempts to reach a rank that is overloaded or gone.
constexpr double kRetrySeconds = 0.02;
constexpr double kMostRetrySeconds = 0.5;
// When to log that a rank is unreachable.
constexpr double kTellSeconds = 10;
// How long a call yields to that of the peer.
constexpr double kCrossingSeconds = 1;
constexpr double kVisitSeconds = 2 * kHandshakeSeconds;
// Fraction of NETWORK_TIMEOUT, as for an existing link (platform/tcp_socket.h).
constexpr double kPatienceShare = 0.8;
// The same if connections are refused; an interruption of this length is tolerated.
constexpr double kRefusedShare = 0.2;
// How often the acceptor checks timeouts while connections are pending.
constexpr double kGuestSeconds = 0.25;

// Tags in the poller: the number of a newcomer or of a stream that is being left, a rank that is
// called or that calls, or one of these.
constexpr uint64_t kCallTag = uint64_t{1} << 62;
constexpr uint64_t kVisitTag = uint64_t{1} << 61;
constexpr uint64_t kDoorsTag = uint64_t{1} << 63;
constexpr uint64_t kOrdersTag = kDoorsTag + 1;
constexpr uint64_t kEndTag = kDoorsTag + 2;

// Whether the peer has sent nothing, as it must while it waits for this rank.
bool IsSilent(ByteStream& stream) {
  std::byte nothing;
  const Result<size_t> got = stream.ReceiveSome({&nothing, 1});
  return got.ok() && *got == 0;
}

}  // namespace

Result<std::unique_ptr<TcpLinkMaker>> TcpLinkMaker::Start(Options options) {
  auto poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  auto orders = EventFd::Create();
  if (!orders.ok()) return orders.status();
  auto made = EventFd::Create();
  if (!made.ok()) return made.status();
  std::unique_ptr<TcpLinkMaker> maker(new TcpLinkMaker(std::move(options), poller.TakeValue(),
                                                       orders.TakeValue(), made.TakeValue()));
  HS_RETURN_IF_ERROR(maker->Begin());
  return maker;
}

TcpLinkMaker::TcpLinkMaker(Options options, Poller poller, EventFd orders, EventFd made)
    : terms_(std::move(options.terms)),
      listeners_(std::move(options.listeners)),
      places_(std::move(options.places)),
      start_by_(Deadline::After(options.start_seconds)),
      poller_(std::move(poller)),
      orders_event_(std::move(orders)),
      made_event_(std::move(made)) {
  for (const auto& [rank, place] : places_) known_.insert(rank);
}

Status TcpLinkMaker::Begin() {
  std::vector<Acceptor::Door> doors;
  for (TcpListener& listener : listeners_) {
    doors.push_back({listener.fd(), [&listener] { return listener.Accept(Deadline::After(0)); }});
  }
  auto acceptor = Acceptor::Create(std::move(doors), terms_.secret, terms_.AuthContext(terms_.rank),
                                   BetweenHosts(terms_.encrypt));
  if (!acceptor.ok()) return acceptor.status();
  acceptor_.emplace(acceptor.TakeValue());
  HS_RETURN_IF_ERROR(poller_.Add(acceptor_->fd(), kDoorsTag));
  HS_RETURN_IF_ERROR(poller_.Add(orders_event_.fd(), kOrdersTag));
  auto thread = Thread::Start("horoscale-links", [this] { Run(); });
  if (!thread.ok()) return thread.status();
  thread_ = thread.TakeValue();
  return {};
}

// ------------------------------------------------------------------ any thread

void TcpLinkMaker::Call(int rank) {
  {
    std::lock_guard lock(mutex_);
    orders_.calls.push_back(rank);
  }
  orders_event_.Signal();
}

void TcpLinkMaker::Forget(int rank) {
  {
    std::lock_guard lock(mutex_);
    orders_.forgotten.push_back(rank);
  }
  orders_event_.Signal();
}

void TcpLinkMaker::EndStart() { starting_.store(false); }

bool TcpLinkMaker::IsComing(int rank) const {
  std::lock_guard lock(mutex_);
  return coming_.contains(rank);
}

std::vector<TcpLinkMaker::Made> TcpLinkMaker::Take() {
  made_event_.Drain();
  std::lock_guard lock(mutex_);
  for (const Made& made : made_) coming_.erase(made.rank);
  return std::exchange(made_, {});
}

std::string TcpLinkMaker::trouble() const {
  std::lock_guard lock(mutex_);
  return trouble_;
}

void TcpLinkMaker::CallOnEnd(std::function<void()> look) {
  std::lock_guard lock(mutex_);
  look_ = std::move(look);
}

Status TcpLinkMaker::WatchEnd(int fd, Poller::Interest interest) {
  return poller_.Add(fd, kEndTag, interest);
}

void TcpLinkMaker::Stop() {
  stopping_.store(true);
  orders_event_.Signal();
  thread_.Join();
  // Notifies waiting peers immediately.
  for (const TcpListener& listener : listeners_) shutdown(listener.fd(), SHUT_RDWR);
  for (const auto& [id, newcomer] : newcomers_) Abandon(newcomer.stream.fd());
  for (const auto& [id, dial] : leaving_) Abandon(dial.fd());
  for (auto& [rank, peer] : peers_) DropVisit(peer);
  peers_.clear();
  newcomers_.clear();
  leaving_.clear();
  acceptor_.reset();
  listeners_.clear();
}

// ------------------------------------------------------------------ the thread

void TcpLinkMaker::Run() {
  while (!stopping_.load()) {
    FollowOrders();
    std::array<Poller::Ready, 32> ready;
    const Result<size_t> count = poller_.Wait(DoWhatIsDue(), ready);
    bool has_ended = false;
    for (size_t i = 0; count.ok() && i < *count; ++i) {
      const uint64_t tag = ready[i].tag;
      if (tag == kDoorsTag) {
        Accept();
      } else if (tag == kOrdersTag) {
        orders_event_.Drain();
      } else if (tag == kEndTag) {
        has_ended = true;
      } else if (tag >= kCallTag) {
        const auto at = peers_.find(static_cast<int>(tag - kCallTag));
        if (at == peers_.end() || at->second.call == nullptr) continue;
        GoOn(at->first, at->second, at->second.call->Go());
      } else if (tag >= kVisitTag) {
        const auto at = peers_.find(static_cast<int>(tag - kVisitTag));
        if (at != peers_.end()) LookAtVisit(at->first, at->second);
      } else if (leaving_.contains(tag)) {
        GoOnLeaving(tag);
      } else {
        Greet(tag);
      }
    }
    if (!has_ended) continue;
    std::lock_guard lock(mutex_);
    if (look_) look_();
  }
}

void TcpLinkMaker::FollowOrders() {
  Orders orders;
  {
    std::lock_guard lock(mutex_);
    orders = std::exchange(orders_, {});
  }
  for (const int rank : orders.calls) {
    Peer& peer = peers_[rank];
    if (peer.is_over || peer.call != nullptr || !places_.contains(rank)) continue;
    peer.call = std::make_unique<TcpCall>(terms_, rank, places_.at(rank), &poller_,
                                          kCallTag + static_cast<uint64_t>(rank));
    peer.give_up = Deadline::After(PatienceSeconds());
    if (!starting_.load()) peer.tell = Deadline::After(kTellSeconds);
    if (peer.visit) {
      peer.resume = peer.visit->by;
    } else {
      BeginCall(rank, peer);
    }
  }
  for (const int rank : orders.forgotten) {
    Peer& peer = peers_[rank];
    peer.call.reset();
    DropVisit(peer);
    peer.is_over = true;
    SetComing(rank, false);
  }
}

double TcpLinkMaker::DoWhatIsDue() {
  double seconds = acceptor_->has_guests() ? kGuestSeconds : kForever;
  if (acceptor_->has_guests()) Accept();
  std::erase_if(newcomers_, [this](const auto& entry) {
    const bool is_late = entry.second.by.Passed();
    if (is_late) Abandon(entry.second.stream.fd());
    return is_late;
  });
  for (const auto& [id, one] : newcomers_) seconds = std::min(seconds, one.by.SecondsLeft());
  std::erase_if(leaving_, [this](const auto& entry) {
    const bool is_late = entry.second.deadline().Passed();
    if (is_late) Abandon(entry.second.fd());
    return is_late;
  });
  for (const auto& [id, dial] : leaving_)
    seconds = std::min(seconds, dial.deadline().SecondsLeft());
  for (auto& [rank, peer] : peers_) {
    if (peer.visit && peer.visit->by.Passed()) EndVisit(rank, peer);
    if (peer.visit) seconds = std::min(seconds, peer.visit->by.SecondsLeft());
    if (peer.call == nullptr) continue;
    const bool is_too_late = starting_.load() && peer.give_up.Passed();
    if (is_too_late && peer.call->is_active()) {
      peer.call->GiveUp();
      OnCallFailed(rank, peer);
      continue;
    }
    if (peer.resume.Passed()) {
      BeginCall(rank, peer);
    } else if (peer.call->SecondsLeft() <= 0) {
      GoOn(rank, peer, peer.call->Go());
    }
    seconds = std::min(seconds, peer.resume.SecondsLeft());
    if (peer.call == nullptr) continue;
    seconds = std::min(seconds, peer.call->SecondsLeft());
    if (starting_.load() && peer.call->is_active()) {
      seconds = std::min(seconds, peer.give_up.SecondsLeft());
    }
  }
  return seconds;
}

// ------------------------------------------------------------------ links that others make

void TcpLinkMaker::Accept() {
  Result<ByteStream> stream = acceptor_->Next(Deadline::After(0));
  if (const std::string& trouble = acceptor_->trouble(); !trouble.empty()) {
    std::lock_guard lock(mutex_);
    trouble_ = trouble;
  }
  if (!stream.ok()) return;  // not authenticated, or closed
  const uint64_t id = next_id_++;
  if (!poller_.Add(stream->fd(), id).ok()) return;
  TcpHelloReader reader(*stream, TcpHelloReader::Awaited::kHello);
  newcomers_.emplace(
      id, Newcomer{stream.TakeValue(), std::move(reader), Deadline::After(kHandshakeSeconds)});
  Greet(id);  // the hello may already have arrived
}

void TcpLinkMaker::Greet(uint64_t id) {
  const auto at = newcomers_.find(id);
  if (at == newcomers_.end()) return;
  Newcomer& newcomer = at->second;
  const Result<bool> heard = newcomer.reader.Receive(newcomer.stream);
  if (heard.ok() && !*heard) return;
  poller_.Remove(newcomer.stream.fd());
  if (heard.ok()) {
    const auto hello = newcomer.reader.Hello(terms_.Hello(0, 0), known_, newcomer.stream.peer());
    if (hello.ok()) {
      LetIn(std::move(newcomer.stream), *hello);
    } else {
      Report({-1, {}, hello.status()});
    }
  } else if (!MayBeLetInLater(heard.status())) {
    Report({-1, {}, heard.status()});
  }
  newcomers_.erase(at);
}

void TcpLinkMaker::LetIn(ByteStream stream, const TcpHello& hello) {
  Peer& peer = peers_[hello.rank];
  if (hello.stream == 0) {
    if (!MayVisit(peer, hello, stream)) return;
    SetComing(hello.rank, true);  // before the peer continues and sends data
    if (!SendTcpAnswer(stream, TcpAnswer::kTaken, Deadline::After(0)).ok()) {
      return EndVisit(hello.rank, peer);
    }
    DropVisit(peer);
    peer.visit = Visit{hello.attempt, {}, Deadline::After(kVisitSeconds)};
    peer.visit->streams.resize(1 + terms_.data_streams);
    LeaveCall(peer);
    peer.resume = peer.visit->by;
  }
  if (!peer.visit || peer.visit->attempt != hello.attempt) return;
  if (hello.stream == 0) {
    // Do not wait for a peer that gives up or exits.
    const uint64_t tag = kVisitTag + static_cast<uint64_t>(hello.rank);
    (void)poller_.Add(stream.fd(), tag, Poller::Interest::kEndOnce);
  }
  std::vector<std::optional<ByteStream>>& streams = peer.visit->streams;
  streams[hello.stream].emplace(std::move(stream));
  if (!std::all_of(streams.begin(), streams.end(), [](const auto& s) { return s.has_value(); })) {
    return;
  }
  // A peer that has given up would interpret the end of the link as the exit of this rank.
  const bool is_there = !peer.visit->by.Passed() && IsSilent(*streams[0]);
  if (!is_there || !SendTcpAnswer(*streams[0], TcpAnswer::kMade, Deadline::After(0)).ok()) {
    return EndVisit(hello.rank, peer);
  }
  poller_.Remove(streams[0]->fd());
  TcpStreams all;
  for (std::optional<ByteStream>& one : streams) all.push_back(std::move(*one));
  HandOver(hello.rank, peer, std::move(all));
}

// Whether the peer may make a link with this attempt; answers if it may not.
bool TcpLinkMaker::MayVisit(Peer& peer, const TcpHello& hello, ByteStream& stream) {
  const bool is_stale = peer.visit && hello.attempt <= peer.visit->attempt;
  if (is_stale) return false;
  // Not while the peer may accept this rank's own call.
  const bool is_calling = peer.call != nullptr && peer.call->is_active();
  const bool is_crossing = is_calling && (peer.call->is_taken() || terms_.rank > hello.rank);
  if (!peer.is_over && !is_crossing) {
    return IsSilent(stream);  // it waits for the answer, unless it has given up meanwhile
  }
  (void)SendTcpAnswer(stream, peer.is_over ? TcpAnswer::kLost : TcpAnswer::kCrossing,
                      Deadline::After(0));
  return false;
}

// The control stream of this visit, or of an earlier attempt, was closed.
void TcpLinkMaker::LookAtVisit(int rank, Peer& peer) {
  if (peer.visit && !IsSilent(*peer.visit->streams[0])) EndVisit(rank, peer);
}

void TcpLinkMaker::DropVisit(Peer& peer) {
  if (!peer.visit) return;
  for (const std::optional<ByteStream>& stream : peer.visit->streams) {
    if (stream) Abandon(stream->fd());
  }
  peer.visit.reset();
}

void TcpLinkMaker::EndVisit(int rank, Peer& peer) {
  DropVisit(peer);
  SetComing(rank, false);
  if (peer.call != nullptr && !peer.call->is_active()) peer.resume = Deadline::After(0);
}

// ------------------------------------------------------------------ links that this rank makes

void TcpLinkMaker::BeginCall(int rank, Peer& peer) {
  peer.resume = Deadline::Never();
  DropVisit(peer);
  SetComing(rank, false);
  GoOn(rank, peer, peer.call->Begin());
}

void TcpLinkMaker::LeaveCall(Peer& peer) {
  auto rest = peer.call != nullptr ? peer.call->Leave() : std::nullopt;
  if (!rest || !poller_.Add(rest->fd(), next_id_, Poller::Interest::kReadWrite).ok()) return;
  leaving_.emplace(next_id_++, std::move(*rest));
}

void TcpLinkMaker::GoOnLeaving(uint64_t id) {
  TcpDial& dial = leaving_.at(id);
  const Result<bool> greeted = dial.Go();
  if (!greeted.ok() || *greeted) {
    Abandon(dial.fd());
    leaving_.erase(id);
  } else if (dial.is_connected()) {
    (void)poller_.Modify(dial.fd(), id, Poller::Interest::kRead);
  }
}

void TcpLinkMaker::GoOn(int rank, Peer& peer, TcpCall::Progress progress) {
  switch (progress) {
    case TcpCall::Progress::kGoingOn:
      if (peer.call->is_taken()) SetComing(rank, true);
      return;
    case TcpCall::Progress::kMade:
      return HandOver(rank, peer, peer.call->TakeStreams());
    case TcpCall::Progress::kCrossing:
      peer.resume = Deadline::After(kCrossingSeconds);
      peer.give_up = Deadline::After(PatienceSeconds());
      peer.refused = Deadline::Never();
      peer.pause = 0;
      return;
    case TcpCall::Progress::kRefused:
      peer.call.reset();
      return Report({rank, {}, Status::Protocol("it considers this rank lost")});
    case TcpCall::Progress::kFailed:
      return OnCallFailed(rank, peer);
  }
}

void TcpLinkMaker::OnCallFailed(int rank, Peer& peer) {
  const bool is_starting = starting_.load();
  if (!peer.visit) SetComing(rank, false);
  if (peer.call->is_answered() && !is_starting) {
    peer.give_up = Deadline::After(PatienceSeconds());
  }
  if (peer.call->may_come()) {
    peer.refused = Deadline::Never();
  } else if (peer.refused.at() == Deadline::Never().at()) {
    peer.refused = Deadline::After(is_starting ? 0 : kRefusedShare * terms_.silence_seconds);
  }
  if (peer.give_up.Passed() || peer.refused.Passed()) {
    const Status& failure = peer.call->failure();
    Report({rank, {}, Status(failure.code(), failure.message(), {{rank}, -1, ""})});
    peer.call.reset();
    return;
  }
  if (peer.tell.Passed()) {
    peer.tell = Deadline::Never();
    Log(LogLevel::kWarning, "rank " + std::to_string(rank) +
                                " can't be reached yet: " + peer.call->failure().message());
  }
  peer.pause = std::clamp(2 * peer.pause, kRetrySeconds, kMostRetrySeconds);
  const double left = std::min(peer.give_up.SecondsLeft(), peer.refused.SecondsLeft());
  peer.resume = Deadline::After(std::min(peer.pause, left));
}

// ------------------------------------------------------------------ both

// Called before the socket is closed. If a forked child shares the socket, it would otherwise still
// be polled, and the peer would not see it close.
void TcpLinkMaker::Abandon(int fd) {
  poller_.Remove(fd);
  shutdown(fd, SHUT_RDWR);
}

void TcpLinkMaker::HandOver(int rank, Peer& peer, TcpStreams streams) {
  LeaveCall(peer);
  peer.call.reset();
  peer.visit.reset();
  peer.is_over = true;
  // Only the control stream has this limit: the data streams of a rank that is stopped in a
  // debugger may be full for any time.
  Status limited = SetSilenceLimit(streams.front(), terms_.silence_seconds);
  for (const ByteStream& stream : streams) SetKeepAlive(stream, terms_.silence_seconds);
  SetComing(rank, true);
  if (!limited.ok()) streams.clear();
  Report({rank, std::move(streams), std::move(limited)});
}

void TcpLinkMaker::Report(Made made) {
  if (made.rank < 0 && !starting_.load()) {
    return Log(LogLevel::kWarning, "rejected a link: " + made.failure.message());
  }
  {
    std::lock_guard lock(mutex_);
    made_.push_back(std::move(made));
  }
  made_event_.Signal();
}

void TcpLinkMaker::SetComing(int rank, bool is_coming) {
  std::lock_guard lock(mutex_);
  if (is_coming) {
    coming_.insert(rank);
  } else {
    coming_.erase(rank);
  }
}

double TcpLinkMaker::PatienceSeconds() const {
  return starting_.load() ? start_by_.SecondsLeft() : kPatienceShare * terms_.silence_seconds;
}

}  // namespace horoscale
