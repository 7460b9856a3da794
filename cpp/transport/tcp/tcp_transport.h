// The transport to ranks of other hosts: several TCP streams per pair of ranks that communicate,
// one for control and notifications about chunks, the others for the chunks. Data for a rank
// without a link is queued until a link is created. A chunk is sent only to a bank that its
// receiver has released, so a stalled set does not block others. The chunks of one bank use the
// same stream and arrive in order; those of other banks may overtake them.
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

// Part of a HostsTransport, which implements sleeping.
class TcpTransport final : private MessagePost {
 public:
  // `silence_seconds` as in TcpLinkTerms. `all_streams`: use all streams even on a slow network.
  // Without a maker, only the links of the mesh exist.
  static Result<std::unique_ptr<TcpTransport>> Create(int rank, TcpMesh mesh,
                                                      double silence_seconds,
                                                      bool all_streams = true);

  // As in Transport, for the peers.
  void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload);
  bool Poll(TransportSink& sink);
  bool HasUnsent() const;
  // `is_near`: the ranks that are reached without messages; may be empty.
  Result<std::unique_ptr<MessageExchange>> Open(ChannelId channel, std::span<const int> ranks,
                                                const std::function<bool(int)>& is_near = nullptr);
  void Forget(ChannelId channel) { channels_.Forget(channel); }
  void Arm() { channels_.TellReleased(); }
  const TransportCounters& counters() const { return counters_; }
  std::vector<std::pair<int, uint64_t>> LinkBytes() const;
  void Close(std::span<const std::byte> last_frame, const Deadline& deadline);

  // Requests a link to the rank, unless there is one or the rank is lost.
  void Reach(int rank) override;
  // The ranks for which required data is waiting for a link, or for the first messages on it.
  std::vector<int> Awaited() const;
  // The ranks to which required data could not be delivered.
  const std::set<int>& undelivered() const { return undelivered_; }
  // The ranks to which links were created since the last call.
  std::vector<int> TakeNewlyLinked() { return std::exchange(newly_linked_, {}); }
  LinkState StateOf(int rank) const override;
  // The ranks to which links exist or are being created by this rank.
  std::vector<int> Linked() const;
  // Another rank reports that `rank` is lost, possibly with its goodbye. Ignored if there is a
  // link, which detects the loss itself, or if an incoming link will deliver data that the rank
  // sent before it left.
  void OnToldLost(int rank, const std::string& reason,
                  std::optional<std::vector<std::byte>> goodbye);
  // As in Transport; also for other descriptors.
  void CallOnEnd(std::function<void()> look);
  Status WatchEnd(int fd, Poller::Interest interest);

  // Readable if a stream is readable.
  int fd() const { return poller_.fd(); }

 private:
  static constexpr size_t kControl = 0;  // index of the control stream in a link

  struct Stream {
    Stream(ByteStream stream, size_t buffer_bytes);
    ByteStream socket;
    MessageReader in;
    MessageWriter out;
    MessageChannels::Arrival arrival;  // the chunk that is being received
    bool awaits_room = false;          // the poller reports when more can be sent
    Status failure;                    // of sending; received data is still read
    bool is_over = false;              // the peer has closed the stream
  };
  struct Frame {
    MessageHeader header;
    std::vector<std::byte> payload;
  };
  struct Link {
    void Open(TcpStreams sockets, bool all_streams);
    std::deque<Stream> streams;          // by index: control, then data; empty: the link is being
                                         // created
    std::vector<Frame> unsent;           // until the link is created
    std::optional<StreamChoice> choice;  // for the data streams
    std::vector<std::byte> goodbye;      // the received goodbye; delivered after all data
    bool has_goodbye = false;
    bool awaits_end = false;    // one of the streams was closed
    double end_by = 0;          // deadline for the other streams, unless data arrives
    double end_at_most = 0;     // and even if data arrives
    uint64_t bytes_sent = 0;    // of chunks
    Status reason;              // why a stream was closed; why the link ended, once is_over
    bool is_over = false;       // the link is closed
    bool is_told = false;       // the sink was notified
    bool is_unreached = false;  // no link could be created
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
  // Ends the link if it was closed properly, or abandons it for `reason`.
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
  // Tags of streams that may have buffered data although their sockets are not readable.
  std::vector<uint64_t> unread_;
  bool has_news_ = false;     // a link has ended, and the sink was not notified yet
  bool awaits_ends_ = false;  // whether there are links with a closed stream
  std::set<int> undelivered_;
  std::vector<int> newly_linked_;
  MessageChannels channels_;
};

}  // namespace horoscale
