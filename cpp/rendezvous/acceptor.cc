#include "rendezvous/acceptor.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "platform/log.h"

namespace horoscale {
namespace {

// Maximum number of unauthenticated connections, of ranks that start and of others. The oldest is
// dropped for the next.
constexpr size_t kMaxGuests = 256;
// Pause of accepting when descriptors have run out.
constexpr double kPauseSeconds = 0.1;
// Repeated rejected connections must not fill the log.
constexpr int kMaxLogged = 10;

}  // namespace

Result<Acceptor> Acceptor::Create(std::vector<Door> doors, std::string secret, std::string context,
                                  Protection protection, double handshake_seconds) {
  Result<Poller> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  Acceptor acceptor(std::move(doors), std::move(secret), std::move(context), protection,
                    handshake_seconds, poller.TakeValue());
  HS_RETURN_IF_ERROR(acceptor.WatchDoors());
  return acceptor;
}

Acceptor::Acceptor(std::vector<Door> doors, std::string secret, std::string context,
                   Protection protection, double handshake_seconds, Poller poller)
    : doors_(std::move(doors)),
      secret_(std::move(secret)),
      context_(std::move(context)),
      protection_(protection),
      handshake_seconds_(handshake_seconds),
      poller_(std::move(poller)),
      next_id_(doors_.size()) {}

Result<ByteStream> Acceptor::Next(const Deadline& deadline, const std::function<Status()>& look) {
  Deadline next_look = Deadline::After(kLookSeconds);
  do {
    std::array<Poller::Ready, 16> ready;
    double seconds = std::min(deadline.SecondsLeft(), DropTheLateAndResume());
    if (look) seconds = std::min(seconds, next_look.SecondsLeft());
    Result<size_t> count = poller_.Wait(seconds, ready);
    if (!count.ok()) return count.status();
    if (look && next_look.Passed()) {
      HS_RETURN_IF_ERROR(look());
      next_look = Deadline::After(kLookSeconds);
    }
    for (const auto& [id, readable, writable] : std::span(ready).first(*count)) {
      if (id < doors_.size()) {
        if (!paused_) AcceptGuest(doors_[id]);
        continue;
      }
      const auto at = guests_.find(id);
      if (at == guests_.end()) continue;  // dropped for another one in this iteration
      Result<bool> proved = Hear(at->second);
      if (!proved.ok()) {
        Drop(id, proved.status());
      } else if (*proved) {
        poller_.Remove(at->second.stream.fd());
        ByteStream stream = std::move(at->second.stream);
        guests_.erase(at);
        return stream;
      }
    }
  } while (!deadline.Passed());
  return Status::Timeout("no further peer connected");
}

Status Acceptor::WatchDoors() {
  for (size_t i = 0; i < doors_.size(); ++i) HS_RETURN_IF_ERROR(poller_.Add(doors_[i].fd, i));
  return {};
}

void Acceptor::Pause(const Status& why) {
  if (!guests_.empty()) {
    Drop(guests_.begin()->first,
         Status(why.code(), "dropped to free a descriptor: " + why.message()));
  } else {
    Refused("an unknown peer, temporarily: " + why.message());
  }
  trouble_ = "; this process temporarily could not accept connections: " + why.message();
  for (const Door& door : doors_) poller_.Remove(door.fd);
  paused_ = true;
  resume_ = Deadline::After(kPauseSeconds);
}

double Acceptor::DropTheLateAndResume() {
  if (paused_ && resume_.Passed()) {
    for (const Door& door : doors_) poller_.Remove(door.fd);
    paused_ = !WatchDoors().ok();
    resume_ = Deadline::After(kPauseSeconds);
  }
  while (!guests_.empty() && guests_.begin()->second.deadline.Passed()) {
    Drop(guests_.begin()->first, Status::Timeout("it did not authenticate in time"));
  }
  const double next = guests_.empty() ? kForever : guests_.begin()->second.deadline.SecondsLeft();
  return paused_ ? std::min(next, resume_.SecondsLeft()) : next;
}

void Acceptor::AcceptGuest(const Door& door) {
  Result<ByteStream> stream = door.accept();
  if (stream.status().code() == StatusCode::kTimeout) return;
  if (stream.status().code() == StatusCode::kUnauthenticated) {
    return Refused(stream.status().message());
  }
  const Status taken = stream.ok() ? Welcome(stream.TakeValue()) : stream.status();
  if (!taken.ok()) return Pause(taken);
  if (guests_.size() > kMaxGuests) {
    Drop(guests_.begin()->first,
         Status::Timeout("it did not authenticate before newer connections needed its place"));
  }
}

Status Acceptor::Welcome(ByteStream stream) {
  Result<Handshake> handshake =
      Handshake::Create(Handshake::Role::kServer, secret_, context_, protection_);
  if (!handshake.ok()) return handshake.status();
  std::vector<std::byte> input(handshake->wanted());
  const uint64_t id = next_id_++;
  HS_RETURN_IF_ERROR(poller_.Add(stream.fd(), id));
  guests_.emplace(id, Guest{.stream = std::move(stream),
                            .handshake = handshake.TakeValue(),
                            .input = std::move(input),
                            .deadline = Deadline::After(handshake_seconds_)});
  return {};
}

Result<bool> Acceptor::Hear(Guest& guest) {
  if (guest.handshake.done()) return guest.stream.Handshake();
  Result<size_t> got = guest.stream.ReceiveSome(std::span(guest.input).subspan(guest.received));
  if (!got.ok()) return got.status();
  guest.received += *got;
  if (guest.received < guest.input.size()) return false;
  const Status fed = guest.handshake.Feed(guest.input);
  // A few bytes, which fit into the buffer of any correct peer.
  const std::vector<std::byte> output = guest.handshake.TakeOutput();
  HS_RETURN_IF_ERROR(guest.stream.SendAll(output, Deadline::After(0)));
  HS_RETURN_IF_ERROR(fed);
  guest.input.resize(guest.handshake.wanted());
  guest.received = 0;
  if (!guest.handshake.done()) return false;
  HS_RETURN_IF_ERROR(guest.handshake.Protect(guest.stream));
  return guest.stream.Handshake();
}

void Acceptor::Drop(uint64_t id, const Status& why) {
  const auto at = guests_.find(id);
  Refused(at->second.stream.peer() + ": " + why.message());
  poller_.Remove(at->second.stream.fd());
  guests_.erase(at);
}

void Acceptor::Refused(const std::string& whom_and_why) {
  if (++refused_ > kMaxLogged) return;
  Log(LogLevel::kWarning, "refused a connection to a link socket from " + whom_and_why);
}

}  // namespace horoscale
