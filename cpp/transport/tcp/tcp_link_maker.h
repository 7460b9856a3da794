// TcpLinkMaker: a thread that creates this rank's links to ranks of other hosts during the whole
// job, both outgoing and incoming ones, and passes them to the transport.
//
// Either side may start. If both do, the higher rank's link is created: the higher rank answers
// kCrossing, and the lower one waits for the call. A failed call is retried until the peer is known
// to be lost, its machine has been unreachable for NETWORK_TIMEOUT, or it has refused connections
// for part of that time. If the machine responds but the process does not (because it is stopped),
// the call waits. The Acceptor handles unauthenticated connections.
//
// The thread also watches for closed links while no other thread does (WatchEnd()).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/event_fd.h"
#include "platform/poller.h"
#include "platform/tcp_socket.h"
#include "platform/thread.h"
#include "rendezvous/acceptor.h"
#include "transport/tcp/tcp_call.h"

namespace horoscale {

class TcpLinkMaker {
 public:
  struct Options {
    TcpLinkTerms terms;
    std::vector<TcpListener> listeners;  // sockets on which this rank accepts links
    std::map<int, std::string> places;   // addresses of peers, as for TcpCall; these ranks may also
                                         // call
    // During startup, failures are reported immediately; calls may take this long.
    double start_seconds = 60;
  };
  static Result<std::unique_ptr<TcpLinkMaker>> Start(Options options);
  ~TcpLinkMaker() { Stop(); }

  // The following may be called by any thread.

  // Creates a link to the rank, unless there is or was one.
  void Call(int rank);
  // The rank is lost: no more links to it are created.
  void Forget(int rank);
  // Ends the startup phase: failed calls are retried from now on.
  void EndStart();
  // Whether the rank is creating a link, or its link has not been taken yet.
  bool IsComing(int rank) const;

  struct Made {
    int rank = -1;       // -1: a failure that concerns no particular rank
    TcpStreams streams;  // empty: a call has failed
    Status failure;
  };
  std::vector<Made> Take();
  // Readable when Take() has something.
  int fd() const { return made_event_.fd(); }

  // As Acceptor's: why connections temporarily could not be accepted.
  std::string trouble() const;

  // Registers `look`, which is called when a watched descriptor is closed (`interest`: kEndOnce or
  // kReadOnce). The descriptor may be closed at any time.
  void CallOnEnd(std::function<void()> look);
  Status WatchEnd(int fd, Poller::Interest interest = Poller::Interest::kEndOnce);

  // Stops the thread and drops incomplete links. Completed ones can still be taken.
  void Stop();

 private:
  // An authenticated connection whose hello is awaited.
  struct Newcomer {
    ByteStream stream;
    TcpHelloReader reader;
    Deadline by;
  };
  // An incoming link: the streams of the peer's last attempt.
  struct Visit {
    uint32_t attempt = 0;
    std::vector<std::optional<ByteStream>> streams;
    Deadline by;
  };
  struct Peer {
    std::unique_ptr<TcpCall> call;         // exists from the first call until the link is complete
    Deadline resume = Deadline::Never();   // end of a call's pause
    Deadline give_up = Deadline::Never();  // time limit of the call
    Deadline refused = Deadline::Never();  // the same if the peer refuses connections
    Deadline tell = Deadline::Never();     // when to log that it takes long
    double pause = 0;                      // the last pause after a failure
    std::optional<Visit> visit;
    bool is_over = false;  // linked, or lost
  };
  struct Orders {
    std::vector<int> calls;
    std::vector<int> forgotten;
  };

  TcpLinkMaker(Options options, Poller poller, EventFd orders, EventFd made);
  Status Begin();
  void Run();
  void FollowOrders();
  // Handles timeouts; returns the time of the next one.
  double DoWhatIsDue();
  void Accept();
  void Greet(uint64_t id);
  void LetIn(ByteStream stream, const TcpHello& hello);
  bool MayVisit(Peer& peer, const TcpHello& hello, ByteStream& stream);
  void LookAtVisit(int rank, Peer& peer);
  void DropVisit(Peer& peer);
  void EndVisit(int rank, Peer& peer);
  void BeginCall(int rank, Peer& peer);
  void LeaveCall(Peer& peer);
  void GoOnLeaving(uint64_t id);
  void GoOn(int rank, Peer& peer, TcpCall::Progress progress);
  void OnCallFailed(int rank, Peer& peer);
  void HandOver(int rank, Peer& peer, TcpStreams streams);
  void Report(Made made);
  void SetComing(int rank, bool is_coming);
  void Abandon(int fd);
  double PatienceSeconds() const;

  const TcpLinkTerms terms_;
  std::vector<TcpListener> listeners_;
  const std::map<int, std::string> places_;
  const Deadline start_by_;
  std::atomic<bool> starting_{true};
  std::atomic<bool> stopping_{false};

  // Used by the thread.
  Poller poller_;
  std::optional<Acceptor> acceptor_;
  std::map<uint64_t, Newcomer> newcomers_;
  std::map<uint64_t, TcpDial> leaving_;  // streams of abandoned calls
  uint64_t next_id_ = 0;                 // of both
  std::map<int, Peer> peers_;
  std::set<int> known_;  // ranks that may call

  const EventFd orders_event_;
  const EventFd made_event_;
  mutable std::mutex mutex_;
  Orders orders_;  // guarded by mutex_, like the following
  std::vector<Made> made_;
  std::set<int> coming_;
  std::string trouble_;
  std::function<void()> look_;

  Thread thread_;  // last: it uses everything above
};

}  // namespace horoscale
