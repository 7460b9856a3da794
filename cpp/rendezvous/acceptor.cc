#include "rendezvous/acceptor.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "platform/log.h"

namespace horoscale {
namespace {

constexpr uint64_t kListener = 0;
constexpr double kNever = std::numeric_limits<double>::infinity();
// Unproved connections at a time: ranks that start at once, and strangers. The oldest makes room.
constexpr size_t kMaxGuests = 256;
// A stranger that comes again and again must not fill the log.
constexpr int kMaxLogged = 10;

}  // namespace

Result<Acceptor> Acceptor::Create(int listener, Accept accept, std::string secret,
                                  std::string context) {
  Result<Poller> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  HS_RETURN_IF_ERROR(poller->Add(listener, kListener));
  return Acceptor(std::move(accept), std::move(secret), std::move(context), poller.TakeValue());
}

Acceptor::Acceptor(Accept accept, std::string secret, std::string context, Poller poller)
    : accept_(std::move(accept)),
      secret_(std::move(secret)),
      context_(std::move(context)),
      poller_(std::move(poller)) {}

Result<ByteStream> Acceptor::Next(const Deadline& deadline, const std::function<Status()>& look) {
  Deadline next_look = Deadline::After(kLookSeconds);
  do {
    std::array<Poller::Ready, 16> ready;
    const double seconds =
        std::min(deadline.SecondsLeft(), look ? next_look.SecondsLeft() : kNever);
    Result<size_t> count = poller_.Wait(seconds, ready);
    if (!count.ok()) return count.status();
    if (look && next_look.Passed()) {
      HS_RETURN_IF_ERROR(look());
      next_look = Deadline::After(kLookSeconds);
    }
    for (const auto& [id, readable, writable] : std::span(ready).first(*count)) {
      if (id == kListener) {
        HS_RETURN_IF_ERROR(AcceptGuest());
        continue;
      }
      const auto at = guests_.find(id);
      if (at == guests_.end()) continue;  // made room in this very turn
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
  return Status::Timeout("nobody more connected");
}

Status Acceptor::AcceptGuest() {
  Result<ByteStream> stream = accept_();
  if (stream.status().code() == StatusCode::kTimeout) return {};
  if (stream.status().code() == StatusCode::kUnauthenticated) {
    Refused(stream.status());
    return {};
  }
  if (!stream.ok()) return stream.status();
  const uint64_t id = next_id_++;
  Result<Handshake> handshake = Handshake::Create(Handshake::Role::kServer, secret_, context_);
  if (!handshake.ok()) return handshake.status();
  std::vector<std::byte> input(handshake->wanted());
  HS_RETURN_IF_ERROR(poller_.Add(stream->fd(), id));
  guests_.emplace(id, Guest{.stream = stream.TakeValue(),
                            .handshake = handshake.TakeValue(),
                            .input = std::move(input)});
  if (guests_.size() > kMaxGuests) {
    Drop(guests_.begin()->first, Status::Timeout("it proved nothing while others came"));
  }
  return {};
}

Result<bool> Acceptor::Hear(Guest& guest) {
  Result<size_t> got = guest.stream.ReceiveSome(std::span(guest.input).subspan(guest.received));
  if (!got.ok()) return got.status();
  guest.received += *got;
  if (guest.received < guest.input.size()) return false;
  const Status fed = guest.handshake.Feed(guest.input);
  // A few bytes, which fit into the buffer of any peer that plays by the rules.
  const std::vector<std::byte> output = guest.handshake.TakeOutput();
  HS_RETURN_IF_ERROR(guest.stream.SendAll(output, Deadline::After(0)));
  HS_RETURN_IF_ERROR(fed);
  guest.input.resize(guest.handshake.wanted());
  guest.received = 0;
  return guest.handshake.done();
}

void Acceptor::Drop(uint64_t id, const Status& why) {
  const auto at = guests_.find(id);
  Refused(Status(why.code(), at->second.stream.peer() + ": " + why.message()));
  poller_.Remove(at->second.stream.fd());
  guests_.erase(at);
}

void Acceptor::Refused(const Status& why) {
  if (++refused_ > kMaxLogged) return;
  Log(LogLevel::kWarning, "refused a connection to a link socket from " + why.message());
}

}  // namespace horoscale
