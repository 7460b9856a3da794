// StoreServerLoop: the event loop of a StoreServer. It runs on the server's thread; only Stop() may
// be called by other threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "platform/event_fd.h"
#include "platform/poller.h"
#include "platform/tcp_socket.h"
#include "rendezvous/auth.h"
#include "rendezvous/gatherings.h"
#include "rendezvous/store_protocol.h"
#include "rendezvous/store_server.h"
#include "rendezvous/store_table.h"

namespace horoscale {

class StoreServerLoop {
 public:
  static Result<std::unique_ptr<StoreServerLoop>> Create(StoreServerOptions options);

  uint16_t port() const { return listeners_.front().port(); }
  uint64_t requests() const { return requests_.load(); }
  void Run();
  void Stop();

 private:
  // In the order of arrival.
  using ConnectionId = uint64_t;
  // Several connections may share the same output.
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  struct Connection {
    Connection(ByteStream s, Handshake h)
        : stream(std::move(s)), handshake(std::move(h)), input(handshake->wanted()) {}

    ByteStream stream;
    std::optional<Handshake> handshake;  // until the connection is authenticated
    std::vector<std::byte> input;        // the unit that is being received
    size_t received = 0;                 // of input
    bool in_body = false;                // whether input is a frame's body or its header
    std::deque<Bytes> output;            // not accepted by the socket yet
    size_t sent = 0;                     // of the first of it
    std::string awaited_key;             // of a waiting GET; or of a GATHER: the key that cancels
                                         // it
    std::string gathering;               // of a waiting GATHER; empty: none
    std::string will_key;                // to be set when the connection is closed; empty: none
    std::string will;
    double deadline = std::numeric_limits<double>::infinity();

    // A client sends its next request only after the reply to the previous one.
    bool OwesReply() const { return Waits() || !output.empty(); }
    // Whether it waits for a key or for other parties.
    bool Waits() const { return !awaited_key.empty() || !gathering.empty(); }
  };

  StoreServerLoop(StoreServerOptions options, std::vector<TcpListener> listeners, Poller poller,
                  EventFd wake);

  void AcceptOne(uint64_t listener);
  void PauseAccepting(uint64_t listener);
  void Serve(ConnectionId id, const Poller::Ready& ready);
  Status Read(ConnectionId id, Connection& connection);
  Status ReceivedUnit(ConnectionId id, Connection& connection);
  Status FeedHandshake(ConnectionId id, Connection& connection, std::span<const std::byte> bytes);
  Status HandleRequest(ConnectionId id, Connection& connection, const StoreRequest& request);
  Status HandleGet(ConnectionId id, Connection& connection, const StoreRequest& request);
  Status HandleGather(ConnectionId id, Connection& connection, const StoreRequest& request);
  // Replies to the guests of a finished gathering.
  void Conclude(const Gatherings::Outcome& outcome);
  void ReplyAndDropIfBroken(ConnectionId id, const Bytes& reply);
  // Sets a key and replies to the connections that wait for it.
  Status Set(std::string_view key, std::span<const std::byte> value);
  void AnswerWaiters(const std::string& key);
  Status Reply(ConnectionId id, Connection& connection, StatusCode code,
               std::span<const std::byte> payload);
  Status Send(ConnectionId id, Connection& connection, Bytes bytes);
  Status Flush(ConnectionId id, Connection& connection);

  void StopAwaiting(ConnectionId id, Connection& connection);
  void SetDeadline(ConnectionId id, Connection& connection, double at);
  void ExpireDeadlines();
  double SecondsToNextDeadline() const;
  void Drop(ConnectionId id, const Status& why);
  void LogRefusal(const std::string& text);

  const StoreServerOptions options_;
  std::vector<TcpListener> listeners_;  // an index here is the listener's tag
  Poller poller_;
  EventFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> requests_{0};

  StoreTable table_;
  Gatherings gatherings_;
  ConnectionId next_id_;
  std::map<ConnectionId, Connection> connections_;
  std::set<ConnectionId> unauthenticated_;
  std::set<std::pair<std::string, ConnectionId>> waiters_;  // by awaited_key
  std::set<std::pair<double, ConnectionId>> deadlines_;

  double refusals_since_ = 0;  // start of the second that the next two count
  int refusals_logged_ = 0;
  int refusals_unlogged_ = 0;
};

}  // namespace horoscale
