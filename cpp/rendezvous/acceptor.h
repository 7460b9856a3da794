// Acceptor: accepts connections from peers that prove that they know the job's secret.
//
// Any process on the host can connect to an abstract socket, and any machine in the network to a
// port. Connections are authenticated concurrently, so that a silent one delays nobody; connections
// that fail are dropped and logged. Their number and the duration of each handshake are limited. If
// descriptors run out, the oldest unauthenticated connection is dropped, and new ones wait in the
// kernel for a moment. A dropped peer must try again (see MayBeLetInLater()).
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
  // A listening socket. `fd` is readable if a connection is waiting, and must outlive the acceptor.
  // `accept` accepts it: kTimeout if it was closed meanwhile, kUnauthenticated if it is rejected
  // before the handshake.
  struct Door {
    int fd = -1;
    std::function<Result<ByteStream>()> accept;
  };

  // `context` and `protection` as in rendezvous/auth.h. A connection that has not authenticated
  // within `handshake_seconds` is dropped.
  static Result<Acceptor> Create(std::vector<Door> doors, std::string secret, std::string context,
                                 Protection protection,
                                 double handshake_seconds = kHandshakeSeconds);

  // Returns the next authenticated connection, which is protected from then on; kTimeout if there
  // is none. If `look` is not empty, it is called every kLookSeconds during the wait, and an error
  // from it ends the wait.
  static constexpr double kLookSeconds = 0.25;
  Result<ByteStream> Next(const Deadline& deadline, const std::function<Status()>& look = nullptr);

  // For another poller: readable when Next() has something to do.
  int fd() const { return poller_.fd(); }
  // Whether Next() must also be called periodically, because of timeouts.
  bool has_guests() const { return paused_ || !guests_.empty(); }

  // Why connections temporarily could not be accepted, as the end of a sentence; empty if they
  // could.
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
  // Pauses accepting: the sockets would stay readable, and the caller would spin.
  void Pause(const Status& why);
  // Handles timeouts; returns the time until the next one.
  double DropTheLateAndResume();
  void AcceptGuest(const Door& door);
  Status Welcome(ByteStream stream);
  // Reads from an unauthenticated peer; returns whether its handshake is complete.
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
  uint64_t next_id_;                  // smaller numbers are doors
  bool paused_ = false;
  Deadline resume_ = Deadline::Never();
  std::string trouble_;
  int refused_ = 0;
};

}  // namespace horoscale
