// TcpLinkMaker: a thread that makes this rank's links to ranks of other hosts, for as long as the
// job lasts: those that this rank asks for, and those that others do. It hands over what is made.
//
// Either side may begin. Where both do, the link of the higher rank is made: it answers that they
// are crossing, and the lower one lets itself be called. Who calls in vain tries again until the
// peer is known to be lost, its machine has not been reached for NETWORK_TIMEOUT, or refuses for a
// part of that; a machine that answers while the process does not (it is stopped) is waited for.
// Strangers are the Acceptor's affair.
//
// The thread also watches the links' ends while nobody else may (WatchEnd()).
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
    std::vector<TcpListener> listeners;  // where others reach this rank
    std::map<int, std::string> places;   // where it reaches others, who may also call: TcpCall
    // While the links of the start are made a failure is one at once; calls may take so long.
    double start_seconds = 60;
  };
  static Result<std::unique_ptr<TcpLinkMaker>> Start(Options options);
  ~TcpLinkMaker() { Stop(); }

  // The following by any thread.

  // Makes a link with the rank, unless there is one, or was.
  void Call(int rank);
  // The rank is lost: nothing more is made with it.
  void Forget(int rank);
  // From now on calls are tried again and again.
  void EndStart();
  // Whether a link is being made by the rank, or is made and not taken.
  bool IsComing(int rank) const;

  struct Made {
    int rank = -1;       // -1: of a failure that is nobody's in particular
    TcpStreams streams;  // none: a call has failed
    Status failure;
  };
  std::vector<Made> Take();
  // Readable when Take() has something.
  int fd() const { return made_event_.fd(); }

  // As Acceptor's: why connections could not be taken for a while.
  std::string trouble() const;

  // From now on `look` is called when a watched descriptor has ended (`interest`: kEndOnce or
  // kReadOnce). The descriptor may be closed at any time.
  void CallOnEnd(std::function<void()> look);
  Status WatchEnd(int fd, Poller::Interest interest = Poller::Interest::kEndOnce);

  // Ends the thread, and what is not made yet. What is made can still be taken.
  void Stop();

 private:
  // Somebody who has proved the secret, and whose hello is awaited.
  struct Newcomer {
    ByteStream stream;
    TcpHelloReader reader;
    Deadline by;
  };
  // A link that the peer makes: the streams of its last attempt.
  struct Visit {
    uint32_t attempt = 0;
    std::vector<std::optional<ByteStream>> streams;
    Deadline by;
  };
  struct Peer {
    std::unique_ptr<TcpCall> call;         // from the first one on, until the link is made
    Deadline resume = Deadline::Never();   // of a call that pauses
    Deadline give_up = Deadline::Never();  // of the call
    Deadline refused = Deadline::Never();  // the same where its failures are no silence
    Deadline tell = Deadline::Never();     // that it takes long
    double pause = 0;                      // the last one after a failure
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
  // What is due by the clock; when that is next.
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

  // Of the thread.
  Poller poller_;
  std::optional<Acceptor> acceptor_;
  std::map<uint64_t, Newcomer> newcomers_;
  std::map<uint64_t, TcpDial> leaving_;  // streams of calls that were given up
  uint64_t next_id_ = 0;                 // of both
  std::map<int, Peer> peers_;
  std::set<int> known_;  // who may call

  const EventFd orders_event_;
  const EventFd made_event_;
  mutable std::mutex mutex_;
  Orders orders_;  // guarded by mutex_, as the following
  std::vector<Made> made_;
  std::set<int> coming_;
  std::string trouble_;
  std::function<void()> look_;

  Thread thread_;  // last: it uses everything above
};

}  // namespace horoscale
