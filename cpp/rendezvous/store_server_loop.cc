#include "rendezvous/store_server_loop.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "platform/log.h"
#include "platform/tls_library.h"
#include "rendezvous/sealed_records.h"

namespace horoscale {
namespace {

// Reserved tags that are not connections.
constexpr uint64_t kMaxListeners = 64;  // listeners have smaller tags
constexpr uint64_t kWakeTag = kMaxListeners;
constexpr uint64_t kFirstConnection = kMaxListeners + 1;

// A port that is free on one address may be in use on another.
constexpr int kPortsTried = 16;

// Pause of accepting when descriptors have run out.
constexpr double kAcceptPauseSeconds = 0.1;
constexpr int kMaxRefusalsLoggedPerSecond = 20;

// Listens on the hosts' addresses that are available: an interface may have an address that is not
// ready.
Result<std::vector<TcpListener>> ListenAt(const std::vector<std::string>& hosts, uint16_t port) {
  std::vector<TcpListener> listeners;
  Status failure;
  for (const std::string& host : hosts) {
    auto listener = TcpListener::Create(host, listeners.empty() ? port : listeners.front().port());
    if (listener.ok()) {
      listeners.push_back(listener.TakeValue());
    } else {
      failure = listener.status();
    }
  }
  if (listeners.empty()) return failure;
  return listeners;
}

Result<std::vector<TcpListener>> Listen(const StoreServerOptions& options) {
  if (options.hosts.empty() || options.hosts.size() > kMaxListeners) {
    return Status::InvalidArgument("a store can't listen on " +
                                   std::to_string(options.hosts.size()) + " addresses");
  }
  auto listeners = ListenAt(options.hosts, options.port);
  for (int tried = 1; options.port == 0 && tried < kPortsTried; ++tried) {
    if (!listeners.ok() || listeners->size() == options.hosts.size()) break;
    listeners = ListenAt(options.hosts, 0);
  }
  return listeners;
}

}  // namespace

Result<std::unique_ptr<StoreServerLoop>> StoreServerLoop::Create(StoreServerOptions options) {
  if (options.encrypt) {
    if (const auto tls = TlsLibrary::Open(); !tls.ok()) return tls.status();
  }
  Result<std::vector<TcpListener>> listeners = Listen(options);
  if (!listeners.ok()) return listeners.status();
  Result<Poller> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  Result<EventFd> wake = EventFd::Create();
  if (!wake.ok()) return wake.status();
  for (size_t i = 0; i < listeners->size(); ++i) {
    HS_RETURN_IF_ERROR(poller->Add((*listeners)[i].fd(), i));
  }
  HS_RETURN_IF_ERROR(poller->Add(wake->fd(), kWakeTag));
  return std::unique_ptr<StoreServerLoop>(new StoreServerLoop(
      std::move(options), listeners.TakeValue(), poller.TakeValue(), wake.TakeValue()));
}

StoreServerLoop::StoreServerLoop(StoreServerOptions options, std::vector<TcpListener> listeners,
                                 Poller poller, EventFd wake)
    : options_(std::move(options)),
      listeners_(std::move(listeners)),
      poller_(std::move(poller)),
      wake_(std::move(wake)),
      table_(options_.capacity_bytes),
      gatherings_(options_.capacity_bytes),
      next_id_(kFirstConnection) {}

void StoreServerLoop::Stop() {
  stopping_.store(true);
  wake_.Signal();
}

void StoreServerLoop::Run() {
  std::array<Poller::Ready, 64> ready;
  while (!stopping_.load()) {
    const Result<size_t> count = poller_.Wait(SecondsToNextDeadline(), ready);
    if (!count.ok()) {
      Log(LogLevel::kError, "the store stopped: " + count.status().message());
      return;
    }
    for (const Poller::Ready& event : std::span(ready).first(*count)) {
      if (event.tag < kMaxListeners) {
        AcceptOne(event.tag);
      } else if (event.tag != kWakeTag) {
        Serve(event.tag, event);
      }
    }
    ExpireDeadlines();
  }
}

// One at a time: the listener stays readable while there are more, and the others are served
// between.
void StoreServerLoop::AcceptOne(uint64_t listener) {
  Result<ByteStream> stream = listeners_[listener].Accept(Deadline::After(0));
  if (!stream.ok()) {
    if (stream.status().code() == StatusCode::kTimeout) return;  // the client has disconnected
    LogRefusal("the store could not accept a connection: " + stream.status().message());
    PauseAccepting(listener);
    return;
  }
  Result<Handshake> handshake = Handshake::Create(
      Handshake::Role::kServer, options_.secret, kStoreAuthContext, BetweenHosts(options_.encrypt));
  const ConnectionId id = next_id_++;
  const Status added = handshake.ok() ? poller_.Add(stream->fd(), id) : handshake.status();
  if (!added.ok()) {
    LogRefusal("the store refused " + stream->peer() + ": " + added.message());
    return;
  }
  if (unauthenticated_.size() >= options_.max_unauthenticated) {
    Drop(*unauthenticated_.begin(),
         Status::Unauthenticated("too many unauthenticated connections; this was the oldest"));
  }
  unauthenticated_.insert(id);
  Connection& connection =
      connections_.try_emplace(id, stream.TakeValue(), handshake.TakeValue()).first->second;
  SetDeadline(id, connection, MonotonicSeconds() + options_.handshake_seconds);
}

// When descriptors have run out, the listener would stay readable and the loop would spin.
void StoreServerLoop::PauseAccepting(uint64_t listener) {
  poller_.Remove(listeners_[listener].fd());
  deadlines_.emplace(MonotonicSeconds() + kAcceptPauseSeconds, listener);
}

void StoreServerLoop::Serve(ConnectionId id, const Poller::Ready& ready) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // dropped earlier in this round
  Connection& connection = found->second;
  Status status;
  if (ready.writable && !connection.output.empty()) status = Flush(id, connection);
  if (status.ok() && ready.readable) status = Read(id, connection);
  // The poller does not report data that is buffered in the stream's layer. A reply that can't be
  // sent drops its connection, which may be this one.
  for (auto at = connections_.find(id);
       status.ok() && at != connections_.end() && at->second.stream.HasPending();
       at = connections_.find(id)) {
    status = Read(id, at->second);
  }
  if (!status.ok() && connections_.contains(id)) Drop(id, status);
}

// Receives at most one unit (a step of the handshake, a header, a body), so that no connection is
// starved.
Status StoreServerLoop::Read(ConnectionId id, Connection& connection) {
  if (connection.OwesReply()) {
    std::byte surplus;
    const Result<size_t> got = connection.stream.ReceiveSome(std::span(&surplus, 1));
    if (!got.ok()) return got.status();
    return *got == 0 ? Status::Ok()
                     : Status::Protocol("a second request before the reply to the first");
  }
  const std::span<std::byte> missing = std::span(connection.input).subspan(connection.received);
  const Result<size_t> got = connection.stream.ReceiveSome(missing);
  if (!got.ok()) return got.status();
  connection.received += *got;
  if (connection.received < connection.input.size()) return Status::Ok();
  connection.received = 0;
  return ReceivedUnit(id, connection);
}

Status StoreServerLoop::ReceivedUnit(ConnectionId id, Connection& connection) {
  const std::vector<std::byte> unit = std::exchange(connection.input, {});
  if (connection.handshake) return FeedHandshake(id, connection, unit);
  if (!connection.in_body) {
    const Result<size_t> body_bytes = DecodeStoreHeader(std::span(unit).first<kStoreHeaderBytes>());
    if (!body_bytes.ok()) return body_bytes.status();
    connection.in_body = true;
    connection.input.resize(*body_bytes);
    return Status::Ok();
  }
  connection.in_body = false;
  connection.input.resize(kStoreHeaderBytes);
  const Result<StoreRequest> request = DecodeStoreRequest(unit);
  if (!request.ok()) return request.status();
  return HandleRequest(id, connection, *request);
}

Status StoreServerLoop::FeedHandshake(ConnectionId id, Connection& connection,
                                      std::span<const std::byte> bytes) {
  Handshake& handshake = *connection.handshake;
  const Status status = handshake.Feed(bytes);
  const Status sent =
      Send(id, connection, std::make_shared<const std::vector<std::byte>>(handshake.TakeOutput()));
  HS_RETURN_IF_ERROR(status);
  HS_RETURN_IF_ERROR(sent);
  if (!handshake.done()) {
    connection.input.resize(handshake.wanted());
    return Status::Ok();
  }
  if (!connection.output.empty()) {  // a few bytes, which fit into any buffer
    return Status::Protocol("it does not read its replies");
  }
  HS_RETURN_IF_ERROR(handshake.Protect(connection.stream));
  UseSealedRecords(connection.stream);
  connection.handshake.reset();
  connection.input.resize(kStoreHeaderBytes);
  unauthenticated_.erase(id);
  SetDeadline(id, connection, kForever);
  return Status::Ok();
}

Status StoreServerLoop::HandleRequest(ConnectionId id, Connection& connection,
                                      const StoreRequest& request) {
  requests_.fetch_add(1);
  if (request.verb == StoreVerb::kGet) return HandleGet(id, connection, request);
  if (request.verb == StoreVerb::kGather) return HandleGather(id, connection, request);
  // Reply to waiting clients first: they receive the value even if this client has disconnected.
  const Status status = Set(request.key, request.value);
  return Reply(id, connection, status.code(), AsBytes(status.message()));
}

Status StoreServerLoop::Set(std::string_view key, std::span<const std::byte> value) {
  HS_RETURN_IF_ERROR(table_.Set(key, value));
  AnswerWaiters(std::string(key));
  return Status::Ok();
}

Status StoreServerLoop::HandleGet(ConnectionId id, Connection& connection,
                                  const StoreRequest& request) {
  if (const std::vector<std::byte>* value = table_.Find(request.key)) {
    return Reply(id, connection, StatusCode::kOk, *value);
  }
  connection.awaited_key = request.key;
  waiters_.emplace(connection.awaited_key, id);
  SetDeadline(id, connection, MonotonicSeconds() + request.wait_ms * 1e-3);
  return Status::Ok();
}

Status StoreServerLoop::HandleGather(ConnectionId id, Connection& connection,
                                     const StoreRequest& request) {
  const GatherRequest& gather = request.gather;
  if (const auto* why = gather.unless.empty() ? nullptr : table_.Find(gather.unless)) {
    return Reply(id, connection, StatusCode::kRankFailed, *why);
  }
  connection.gathering = gather.key;
  if (!gather.will.empty()) connection.will = gather.will;
  if (!gather.unless.empty()) {
    connection.awaited_key = gather.unless;
    waiters_.emplace(connection.awaited_key, id);
  }
  SetDeadline(id, connection, MonotonicSeconds() + request.wait_ms * 1e-3);
  Conclude(gatherings_.Add(id, gather));
  return Status::Ok();
}

void StoreServerLoop::Conclude(const Gatherings::Outcome& outcome) {
  for (const Gatherings::Party& party : outcome.complete) {
    const auto reply = std::make_shared<const std::vector<std::byte>>(
        EncodeReply(StatusCode::kOk, EncodeGathered(party.gathered)));
    for (const ConnectionId id : party.guests) {
      const auto found = connections_.find(id);
      if (found == connections_.end()) continue;
      Connection& connection = found->second;
      if (!connection.will.empty() && connection.will_key.empty()) {
        connection.will_key = FailedKey(RoundPrefix(connection.gathering, party.gathered.round));
      }
      ReplyAndDropIfBroken(id, reply);
    }
  }
  for (const auto& [id, why] : outcome.refused) {
    const auto payload = why.code() == StatusCode::kTimeout ? EncodePlaces(why.detail().ranks)
                                                            : std::vector<std::byte>();
    const std::span<const std::byte> text =
        payload.empty() ? AsBytes(why.message()) : std::span(payload);
    ReplyAndDropIfBroken(
        id, std::make_shared<const std::vector<std::byte>>(EncodeReply(why.code(), text)));
  }
}

void StoreServerLoop::AnswerWaiters(const std::string& key) {
  const std::vector<std::byte>& value = *table_.Find(key);
  for (auto waiter = waiters_.lower_bound({key, 0});
       waiter != waiters_.end() && waiter->first == key; waiter = waiters_.lower_bound({key, 0})) {
    const ConnectionId id = waiter->second;
    const std::string gathering = connections_.at(id).gathering;
    const auto code = gathering.empty() ? StatusCode::kOk : StatusCode::kRankFailed;
    ReplyAndDropIfBroken(id,
                         std::make_shared<const std::vector<std::byte>>(EncodeReply(code, value)));
    if (!gathering.empty()) Conclude(gatherings_.Remove(id, gathering));
  }
}

// For a connection that has waited. If it is dropped, its will is set, which may answer other
// connections that are next in the list.
void StoreServerLoop::ReplyAndDropIfBroken(ConnectionId id, const Bytes& reply) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.Waits()) return;
  Connection& connection = found->second;
  StopAwaiting(id, connection);
  const Status status = Send(id, connection, reply);
  if (!status.ok()) Drop(id, status);
}

Status StoreServerLoop::Reply(ConnectionId id, Connection& connection, StatusCode code,
                              std::span<const std::byte> payload) {
  return Send(id, connection,
              std::make_shared<const std::vector<std::byte>>(EncodeReply(code, payload)));
}

Status StoreServerLoop::Send(ConnectionId id, Connection& connection, Bytes bytes) {
  if (!bytes->empty()) connection.output.push_back(std::move(bytes));
  return Flush(id, connection);
}

Status StoreServerLoop::Flush(ConnectionId id, Connection& connection) {
  std::deque<Bytes>& output = connection.output;
  while (!output.empty()) {
    const Result<size_t> sent =
        connection.stream.SendSome(std::span(*output.front()).subspan(connection.sent));
    if (!sent.ok()) return sent.status();
    connection.sent += *sent;
    if (connection.sent < output.front()->size()) break;
    output.pop_front();
    connection.sent = 0;
  }
  const auto interest = output.empty() ? Poller::Interest::kRead : Poller::Interest::kReadWrite;
  return poller_.Modify(connection.stream.fd(), id, interest);
}

void StoreServerLoop::StopAwaiting(ConnectionId id, Connection& connection) {
  waiters_.erase({connection.awaited_key, id});
  connection.awaited_key.clear();
  connection.gathering.clear();
  SetDeadline(id, connection, kForever);
}

void StoreServerLoop::SetDeadline(ConnectionId id, Connection& connection, double at) {
  deadlines_.erase({connection.deadline, id});
  connection.deadline = at;
  if (at != kForever) deadlines_.emplace(at, id);
}

double StoreServerLoop::SecondsToNextDeadline() const {
  if (deadlines_.empty()) return kForever;
  return std::max(0.0, deadlines_.begin()->first - MonotonicSeconds());
}

void StoreServerLoop::ExpireDeadlines() {
  const double now = MonotonicSeconds();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const ConnectionId id = deadlines_.begin()->second;
    if (id < kMaxListeners) {
      deadlines_.erase(deadlines_.begin());
      if (!poller_.Add(listeners_[id].fd(), id).ok()) PauseAccepting(id);
      continue;
    }
    Connection& connection = connections_.at(id);
    if (!connection.gathering.empty()) {
      const std::string gathering = connection.gathering;
      Conclude(gatherings_.Expire(id, gathering));
      continue;
    }
    Status status = Status::Timeout("it did not authenticate within " +
                                    std::to_string(options_.handshake_seconds) + " s");
    if (!connection.handshake) {
      StopAwaiting(id, connection);
      status = Reply(id, connection, StatusCode::kTimeout, {});
    }
    if (!status.ok()) Drop(id, status);
  }
}

void StoreServerLoop::Drop(ConnectionId id, const Status& why) {
  const auto found = connections_.find(id);
  Connection& connection = found->second;
  const std::string text = "the store dropped " + connection.stream.peer() + ": " + why.message();
  if (connection.handshake || why.code() == StatusCode::kProtocol) {
    LogRefusal(text);
  } else {
    Log(LogLevel::kDebug, text);  // authenticated clients disconnect when they are done
  }
  const std::string gathering = connection.gathering;
  StopAwaiting(id, connection);
  unauthenticated_.erase(id);
  poller_.Remove(connection.stream.fd());
  const std::string will_key = std::move(connection.will_key);
  const std::string will = std::move(connection.will);
  connections_.erase(found);
  if (!gathering.empty()) Conclude(gatherings_.Remove(id, gathering));
  if (!will_key.empty()) (void)Set(will_key, AsBytes(will));  // an existing value is kept
}

// Rejected connections must not be able to fill a disk through the log.
void StoreServerLoop::LogRefusal(const std::string& text) {
  const double now = MonotonicSeconds();
  if (now - refusals_since_ >= 1) {
    if (refusals_unlogged_ > 0) {
      Log(LogLevel::kWarning,
          "the store refused " + std::to_string(refusals_unlogged_) + " more connections");
    }
    refusals_since_ = now;
    refusals_logged_ = refusals_unlogged_ = 0;
  }
  if (refusals_logged_ < kMaxRefusalsLoggedPerSecond) {
    ++refusals_logged_;
    Log(LogLevel::kWarning, text);
  } else {
    ++refusals_unlogged_;
  }
}

}  // namespace horoscale
