// TcpCall: a link between hosts that this rank makes: the control stream, whose hello is answered,
// then those for data. Never waits; whoever polls goes on with it.
//
// It tries the addresses of its peer one after the other. Each time is an attempt with a number of
// its own, so that the peer never takes streams of different attempts for one link. The link is
// made when the peer says so, which has all streams by then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/deadline.h"
#include "platform/poller.h"
#include "rendezvous/address.h"
#include "transport/tcp/tcp_dial.h"
#include "transport/tcp/tcp_hello.h"

namespace horoscale {

// The first one is for control, the others are for data.
using TcpStreams = std::vector<ByteStream>;

class TcpCall {
 public:
  // `places`: "[address]:port" and a newline for each. The sockets are watched by the poller, with
  // this tag. Both outlive the call.
  TcpCall(const TcpLinkTerms& terms, int peer, const std::string& places, Poller* poller,
          uint64_t tag);
  ~TcpCall() { Drop(); }
  TcpCall(const TcpCall&) = delete;
  TcpCall& operator=(const TcpCall&) = delete;

  enum class Progress : uint8_t {
    kGoingOn,
    kMade,      // TakeStreams()
    kCrossing,  // the peer makes the link
    kRefused,   // the peer takes this rank for lost
    kFailed,    // at all places: failure()
  };
  // Tries all places anew.
  Progress Begin();
  // To be called when a socket is ready, and when the time is over.
  Progress Go();
  double SecondsLeft() const { return stage_ == Stage::kIdle ? kForever : by_.SecondsLeft(); }
  // Gives up what is under way; as a failure.
  void Drop();
  void GiveUp();
  // The same, but for a stream that is being authenticated: that goes on, so that the peer doesn't
  // take this rank for a stranger who goes without a word.
  std::optional<TcpDial> Leave();

  bool is_active() const { return stage_ != Stage::kIdle; }
  // Whether the peer has said that it takes this link.
  bool is_taken() const { return is_taken_; }
  TcpStreams TakeStreams();

  const Status& failure() const { return failure_; }
  // Of the last time: whether a later one may succeed at an address where this one found no answer,
  // was crowded out or had no descriptor.
  bool may_come() const { return may_come_; }
  // Whether a machine has let this rank connect, and was silent then, as that of a stopped process,
  // or made it go, as one that is crowded.
  bool is_answered() const { return is_answered_; }

 private:
  enum class Stage : uint8_t { kIdle, kDialling, kAnswer, kEnd };

  // Nothing: there is more to do at once.
  using Step = Result<std::optional<Progress>>;
  Progress Run(Status status);
  Step GoOnDialling();
  Step Hear();
  Status StartStream();
  Status Await(Stage stage, double seconds);
  bool NextPlace(const Status& failed);

  const TcpLinkTerms& terms_;
  const int peer_;
  Poller* const poller_;
  const uint64_t tag_;
  std::vector<HostPort> places_;
  Status misplaced_;  // what is wrong with the places
  size_t place_ = 0;
  uint32_t attempt_ = 0;
  Stage stage_ = Stage::kIdle;
  std::optional<TcpDial> dial_;
  std::optional<TcpHelloReader> reader_;
  TcpStreams streams_;
  Deadline by_ = Deadline::Never();
  bool is_taken_ = false;
  bool may_come_ = false;
  bool is_answered_ = false;
  Status failure_;
};

}  // namespace horoscale
