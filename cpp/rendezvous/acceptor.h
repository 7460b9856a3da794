// Acceptor: lets in who proves the job's secret.
//
// Anybody on the host can connect to an abstract socket, anybody in the network to a port.
// Connections are authenticated side by side, so that one that says nothing keeps nobody waiting;
// strangers are dropped and logged. Their number is bounded, and so is the time of each. Where
// descriptors are used up the oldest makes room, and others wait in the kernel for a moment: who is
// crowded out has to try again (see MayBeLetInLater()).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/poller.h"
#include "rendezvous/auth.h"

namespace horoscale {

class Acceptor {
 public:
  // Where connections come in. `fd` is readable when one waits, and outlives the acceptor. `accept`
  // takes it: kTimeout if it has gone again, kUnauthenticated if it may not even prove anything.
  struct Door {
    int fd = -1;
    std::function<Result<ByteStream>()> accept;
  };

  // `context` and `protection` as in rendezvous/auth.h. A connection that has proved nothing within
  // `handshake_seconds` is dropped.
  static Result<Acceptor> Create(std::vector<Door> doors, std::string secret, std::string context,
                                 Protection protection,
                                 double handshake_seconds = kHandshakeSeconds);

  // The next connection that has proved the secret, protected from now on; kTimeout if none comes.
  // `look`, unless it is empty, is called every kLookSeconds while nobody has: its error ends the
  // wait.
  static constexpr double kLookSeconds = 0.25;
  Result<ByteStream> Next(const Deadline& deadline, const std::function<Status()>& look = nullptr);

  // For another poller: readable when Next() has something to do.
  int fd() const { return poller_.fd(); }
  // Whether Next() also has to be called now and then, because something is due by the clock.
  bool has_guests() const { return paused_ || !guests_.empty(); }

  // Why connections could not be taken for a while, as the end of a sentence; empty if they could.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Guest {
    ByteStream stream;
    Handshake handshake;
    std::vector<std::byte> input;
    Deadline deadline;
    size_t received = 0;
  };

  Acceptor(std::vector<Door> doors, std::string secret, std::string context, Protection protection,
           double handshake_seconds, Poller poller);
  Status WatchDoors();
  // Nobody is let in for a moment: the doors would stay readable, and the caller would spin.
  void Pause(const Status& why);
  // What is due by the clock; when that is next.
  double DropTheLateAndResume();
  void AcceptGuest(const Door& door);
  Status Welcome(ByteStream stream);
  // Reads what a guest has sent; whether its handshake is done.
  Result<bool> Hear(Guest& guest);
  void Drop(uint64_t id, const Status& why);
  void Refused(const std::string& whom_and_why);

  std::vector<Door> doors_;
  std::string secret_;
  std::string context_;
  Protection protection_;
  double handshake_seconds_;
  Poller poller_;
  std::map<uint64_t, Guest> guests_;  // in order of arrival
  uint64_t next_id_;                  // those below are doors
  bool paused_ = false;
  Deadline resume_ = Deadline::Never();
  std::string trouble_;
  int refused_ = 0;
};

}  // namespace horoscale
