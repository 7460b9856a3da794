// TcpCall: a link between hosts that this rank creates: first the control stream, whose hello is
// answered, then the data streams. Non-blocking; the thread that polls its sockets drives it.
//
// It tries the peer's addresses in turn. Each attempt has a unique number, so that the peer never
// combines streams of different attempts into one link. The link is complete when the peer confirms
// that it has all streams.
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

// The first stream is for control, the others are for data.
using TcpStreams = std::vector<ByteStream>;

class TcpCall {
 public:
  // `places` contains "[address]:port" and a newline for each address. The poller watches the
  // sockets with this tag. Poller and terms must outlive the call.
  TcpCall(const TcpLinkTerms& terms, int peer, const std::string& places, Poller* poller,
          uint64_t tag);
  ~TcpCall() { Drop(); }
  TcpCall(const TcpCall&) = delete;
  TcpCall& operator=(const TcpCall&) = delete;

  enum class Progress : uint8_t {
    kGoingOn,
    kMade,      // TakeStreams()
    kCrossing,  // the peer creates the link
    kRefused,   // the peer considers this rank lost
    kFailed,    // at all addresses: see failure()
  };
  // Starts again with all addresses.
  Progress Begin();
  // Must be called when a socket is ready and when the deadline has passed.
  Progress Go();
  double SecondsLeft() const { return stage_ == Stage::kIdle ? kForever : by_.SecondsLeft(); }
  // Aborts the current attempt, as a failure.
  void Drop();
  void GiveUp();
  // The same, but returns a stream that is being authenticated, which must be continued, so that
  // the peer does not log this rank as an unauthenticated connection.
  std::optional<TcpDial> Leave();

  bool is_active() const { return stage_ != Stage::kIdle; }
  // Whether the peer has accepted this link.
  bool is_taken() const { return is_taken_; }
  TcpStreams TakeStreams();

  const Status& failure() const { return failure_; }
  // Whether a later attempt may succeed, because in the last one an address did not respond, the
  // peer was overloaded, or descriptors had run out.
  bool may_come() const { return may_come_; }
  // Whether a machine accepted the connection but then did not respond (for example, because the
  // process is stopped) or closed it (because it is overloaded).
  bool is_answered() const { return is_answered_; }

 private:
  enum class Stage : uint8_t { kIdle, kDialling, kAnswer, kEnd };

  // Empty: continue immediately.
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
  Status misplaced_;  // the error in the addresses
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
