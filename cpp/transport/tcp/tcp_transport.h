// The transport to ranks of other hosts: several TCP streams per pair of ranks, one for control and
// what is said of chunks, the others for the chunks themselves. A chunk is sent only into a bank
// that its receiver has released, so a set that stalls holds up no other one. A bank's chunks take
// one stream: they arrive in their order, while those of other banks may overtake them.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/poller.h"
#include "transport/message/message_channels.h"
#include "transport/tcp/message_reader.h"
#include "transport/tcp/message_writer.h"
#include "transport/tcp/stream_choice.h"
#include "transport/tcp/tcp_mesh.h"
#include "transport/transport.h"

namespace horoscale {

// Part of a HostsTransport, which sleeps for it.
class TcpTransport final : private MessagePost {
 public:
  // `silence_seconds` as in TcpMeshConfig. `all_streams`: use all also where the network is so slow
  // that one does.
  static Result<std::unique_ptr<TcpTransport>> Create(int rank, std::map<int, TcpStreams> streams,
                                                      double silence_seconds,
                                                      bool all_streams = true);

  // As Transport's, for the peers.
  void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload);
  bool Poll(TransportSink& sink);
  bool HasUnsent() const;
  Result<std::unique_ptr<MessageExchange>> Open(ChannelId channel, std::span<const int> ranks);
  void Forget(ChannelId channel) { channels_.Forget(channel); }
  const TransportCounters& counters() const { return counters_; }
  void Close(std::span<const std::byte> last_frame, const Deadline& deadline);

  // Readable when a stream is.
  int fd() const { return poller_.fd(); }

 private:
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
  struct Link {
    Link(TcpStreams sockets, bool all_streams);
    std::deque<Stream> streams;      // by number: control, then data
    StreamChoice choice;             // of those for data
    std::vector<std::byte> goodbye;  // once it has come; delivered behind all data
    bool has_goodbye = false;
    bool awaits_end = false;  // one of the streams is over
    double end_by = 0;        // when the others must be, unless something comes
    double end_at_most = 0;   // and whatever comes
    Status reason;            // of that; of the link's end, once it is over
    bool is_over = false;     // nothing moves any more
    bool is_told = false;     // the sink knows
  };
  class Arrivals;

  TcpTransport(int rank, double silence_seconds, Poller poller);

  // MessagePost
  void PostMessage(int rank, const MessageHeader& header) override;
  void PostChunk(int rank, const MessageHeader& header, std::span<const std::byte> data,
                 const std::shared_ptr<const void>& memory, uint32_t* pending) override;

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
  Poller poller_;
  TransportCounters counters_;
  std::map<int, std::unique_ptr<Link>> links_;
  // Streams, by their tags, that may have something to receive which their sockets don't show.
  std::vector<uint64_t> unread_;
  bool has_news_ = false;     // a link has ended, and the sink has not been told
  bool awaits_ends_ = false;  // of links one of whose streams is over
  MessageChannels channels_;
};

}  // namespace horoscale
