// The transport to ranks of other hosts: several TCP streams per pair of ranks that have to do with
// each other, one for control and what is said of chunks, the others for the chunks themselves.
// What is sent to a rank to which there is no link waits until one is made. A chunk is sent only
// into a bank that its receiver has released, so a set that stalls holds up no other one. A bank's
// chunks take one stream: they arrive in their order, while those of other banks may overtake them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/poller.h"
#include "transport/message/message_channels.h"
#include "transport/tcp/message_reader.h"
#include "transport/tcp/message_writer.h"
#include "transport/tcp/stream_choice.h"
#include "transport/tcp/tcp_link_maker.h"
#include "transport/tcp/tcp_mesh.h"
#include "transport/transport.h"

namespace horoscale {

// Part of a HostsTransport, which sleeps for it.
class TcpTransport final : private MessagePost {
 public:
  // `silence_seconds` as in TcpLinkTerms. `all_streams`: use all also where the network is so slow
  // that one does. Without a maker there are no other links than those of the mesh.
  static Result<std::unique_ptr<TcpTransport>> Create(int rank, TcpMesh mesh,
                                                      double silence_seconds,
                                                      bool all_streams = true);

  // As Transport's, for the peers.
  void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload);
  bool Poll(TransportSink& sink);
  bool HasUnsent() const;
  // `is_near`: who is reached without messages; nobody if it is empty.
  Result<std::unique_ptr<MessageExchange>> Open(ChannelId channel, std::span<const int> ranks,
                                                const std::function<bool(int)>& is_near = nullptr);
  void Forget(ChannelId channel) { channels_.Forget(channel); }
  void Arm() { channels_.TellReleased(); }
  const TransportCounters& counters() const { return counters_; }
  std::vector<std::pair<int, uint64_t>> LinkBytes() const;
  void Close(std::span<const std::byte> last_frame, const Deadline& deadline);

  // Has a link made to the rank, unless there is one, or it is lost.
  void Reach(int rank) override;
  // The ranks for which something that they need waits for a link, or for what comes by it first.
  std::vector<int> Awaited() const;
  // Those that could not be reached with such a thing.
  const std::set<int>& undelivered() const { return undelivered_; }
  // The ranks to which there are links since the last call.
  std::vector<int> TakeNewlyLinked() { return std::exchange(newly_linked_, {}); }
  LinkState StateOf(int rank) const override;
  // The ranks to which there are links, or are being made from here.
  std::vector<int> Linked() const;
  // Another rank has lost this one, and may have its goodbye. Nothing happens if there is a link,
  // which tells itself, or where one is coming with what the rank sent before it left.
  void OnToldLost(int rank, const std::string& reason,
                  std::optional<std::vector<std::byte>> goodbye);
  // As Transport's; also for other descriptors.
  void CallOnEnd(std::function<void()> look);
  Status WatchEnd(int fd, Poller::Interest interest);

  // Readable when a stream is.
  int fd() const { return poller_.fd(); }

 private:
  static constexpr size_t kControl = 0;  // its number among the streams of a link

  struct Stream {
    Stream(ByteStream stream, size_t buffer_bytes);
    ByteStream socket;
    MessageReader in;
    MessageWriter out;
    MessageChannels::Arrival arrival;  // the chunk that is being received
    bool awaits_room = false;          // the poller tells when more can be sent
    Status failure;                    // of sending; what has come is still read
    bool is_over = false;              // the peer sends nothing more
  };
  struct Frame {
    MessageHeader header;
    std::vector<std::byte> payload;
  };
  struct Link {
    void Open(TcpStreams sockets, bool all_streams);
    std::deque<Stream> streams;          // by number: control, then data; none: it is being made
    std::vector<Frame> unsent;           // until it is made
    std::optional<StreamChoice> choice;  // of those for data
    std::vector<std::byte> goodbye;      // once it has come; delivered behind all data
    bool has_goodbye = false;
    bool awaits_end = false;    // one of the streams is over
    double end_by = 0;          // when the others must be, unless something comes
    double end_at_most = 0;     // and whatever comes
    uint64_t bytes_sent = 0;    // of chunks
    Status reason;              // of that; of the link's end, once it is over
    bool is_over = false;       // nothing moves any more
    bool is_told = false;       // the sink knows
    bool is_unreached = false;  // no link could be made
  };
  class Arrivals;

  TcpTransport(int rank, double silence_seconds, bool all_streams,
               std::unique_ptr<TcpLinkMaker> maker, Poller poller);

  // MessagePost
  void PostMessage(int rank, const MessageHeader& header) override;
  void PostChunk(int rank, const MessageHeader& header, std::span<const std::byte> data,
                 const std::shared_ptr<const void>& memory, uint32_t* pending) override;
  bool CanMoveChunks() const override { return true; }
  void MoveChunk(const uint32_t* pending, const std::byte* from, const std::byte* to) override;

  Link& LinkTo(int rank);
  Link& FindOrReach(int rank);
  void Post(int rank, Link& link, const MessageHeader& header, std::span<const std::byte> payload);
  bool IsAwaited(int rank, const Link& link) const;
  Status AddLink(int rank, TcpStreams sockets);
  void TakeLinks();
  void AwaitEnd(Link& link, double seconds_at_most);
  Status Watch(int rank, Link& link);
  static void LookAtRates(Link& link);
  void Flush(int rank, Link& link, size_t number);
  bool ReceiveUnread(TransportSink& sink);
  bool Receive(int rank, Link& link, size_t number, TransportSink& sink);
  // Whether the link has ended in good order, or is to be given up for `reason`.
  void OnStreamOver(int rank, Link& link, size_t number, const Status& reason);
  void EndTheSilent();
  bool TellLosses(TransportSink& sink);
  void End(int rank, Link& link, const Status& reason);

  const int rank_;
  const double last_words_seconds_;
  const bool all_streams_;
  std::unique_ptr<TcpLinkMaker> maker_;  // may be null
  Poller poller_;
  TransportCounters counters_;
  std::map<int, std::unique_ptr<Link>> links_;
  // Streams, by their tags, that may have something to receive which their sockets don't show.
  std::vector<uint64_t> unread_;
  bool has_news_ = false;     // a link has ended, and the sink has not been told
  bool awaits_ends_ = false;  // of links one of whose streams is over
  std::set<int> undelivered_;
  std::vector<int> newly_linked_;
  MessageChannels channels_;
};

}  // namespace horoscale
