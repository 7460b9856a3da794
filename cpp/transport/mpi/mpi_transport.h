// MpiTransport: sends control frames and chunks as point-to-point messages on a private
// communicator.
//
// Requests are only tested, never waited for. MPI provides no descriptor to sleep on, so an idle
// engine polls at intervals from 50 µs to 1 ms. MPI does not report dead ranks either: its launcher
// ends the job.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "platform/event_fd.h"
#include "transport/message/message_channels.h"
#include "transport/mpi/mpi_communicator.h"
#include "transport/set_hosts.h"
#include "transport/transport.h"

namespace horoscale {

class MpiTransport final : public Transport, private MessagePost {
 public:
  // The rank and size are the communicator's. `hosts[r]` is a number for the host of rank r.
  static Result<std::unique_ptr<MpiTransport>> Create(std::unique_ptr<MpiCommunicator> communicator,
                                                      std::vector<uint32_t> hosts);
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(links_.size()); }
  std::vector<uint32_t> HostsOf(std::span<const int> ranks) const override {
    return SetHosts(ranks, hosts_);
  }
  void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload) override;
  bool Poll(TransportSink& sink) override;
  bool HasUnsent() const override;
  Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks) override;
  void Forget(ChannelId channel) override { channels_.Forget(channel); }
  void Arm() override { channels_.TellReleased(); }
  void Sleep(double seconds) override;
  void Disarm() override {}
  void Wake() override { wake_.Signal(); }
  Result<std::byte*> AllocateShared(size_t bytes) override;
  void FreeShared(std::byte* memory) override;
  // Ranks can't access each other's memory.
  int64_t SharedOffset(const std::byte*, size_t) const override { return -1; }
  std::byte* SharedAddress(int, int64_t, size_t) const override { return nullptr; }
  TransportCounters counters() const override { return counters_; }
  void Close(std::span<const std::byte> last_frame, double seconds) override;

 private:
  struct Outgoing {
    MpiHandle request = 0;  // set when it has started
    std::vector<std::byte> bytes;
    std::span<const std::byte> data;  // instead of bytes
    std::shared_ptr<const void> memory;
    uint32_t* pending = nullptr;
    int tag = 0;
  };
  struct Incoming {
    MpiHandle request = 0;
    std::vector<std::byte> bytes;
  };
  // A chunk that is being received into its bank, or discarded if the channel is closed.
  struct IncomingData {
    MpiHandle request = 0;
    std::vector<std::byte> nowhere;
    MessageChannels::Arrival arrival;
  };
  struct Link {
    std::deque<Outgoing> waiting;   // not started, because too many are in flight
    std::list<Outgoing> in_flight;  // being sent
    std::deque<Incoming> incoming;  // in order
    std::list<IncomingData> data;
    bool is_over = false;    // nothing more is delivered, and only the goodbye is sent
    Status reason;           // set when is_over
    bool is_lost = false;    // and the sink was notified
    bool is_broken = false;  // MPI or the peer failed: no more transfers
  };
  MpiTransport(std::unique_ptr<MpiCommunicator> communicator, std::vector<uint32_t> hosts,
               EventFd wake);

  // MessagePost
  void PostMessage(int rank, const MessageHeader& header) override;
  void PostChunk(int rank, const MessageHeader& header, std::span<const std::byte> data,
                 const std::shared_ptr<const void>& memory, uint32_t* pending) override;

  void Enqueue(int rank, Outgoing message, bool is_goodbye = false);
  static Outgoing MakeMessage(const MessageHeader& header, std::span<const std::byte> payload);
  void BeginSends(int rank, Link& link);
  bool FinishSends(int rank, Link& link);
  // Starts receiving the messages that a probe finds; returns whether it found any.
  bool BeginReceives();
  bool FinishReceives(int rank, Link& link, TransportSink& sink);
  bool FinishData(int rank, Link& link);
  bool SomethingIsThere();
  bool SomethingIsThereSoon();
  // Tests whether the request is complete; a failure ends the link.
  bool Done(MpiHandle& request, int rank);

  Status Deliver(int rank, std::span<const std::byte> message, TransportSink& sink);
  Status DeliverFrame(int rank, const MessageHeader& header, std::span<const std::byte> payload,
                      TransportSink& sink);
  Status DeliverToChannel(int rank, const MessageHeader& header, std::span<const std::byte> payload,
                          const TransportSink& sink);
  Status BeginData(int rank, const MessageHeader& header);
  // Stops delivery from the link.
  void End(int rank, const Status& reason);
  // The same because of a failure.
  void Break(int rank, const Status& reason);
  void Abandon();
  // Whether all peers have said goodbye and no messages are in flight.
  bool IsQuiet() const;

  const MpiFunctions& call() const { return comm_->mpi().call(); }
  MpiHandle byte_type() const { return comm_->mpi().handles().byte; }
  Link& LinkTo(int rank) { return links_[static_cast<size_t>(rank)]; }

  const int rank_;
  const std::vector<uint32_t> hosts_;      // by rank
  std::unique_ptr<MpiCommunicator> comm_;  // null once it is closed
  EventFd wake_;
  std::vector<Link> links_;  // by rank; this rank's own is unused
  TransportCounters counters_;
  MessageChannels channels_;
};

}  // namespace horoscale
