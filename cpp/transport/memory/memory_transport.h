// MemoryTransport: the common part of the transports over shared memory: control rings, doorbells,
// channels and the shutdown of links. inproc/ and shm/ implement memory allocation, the detection
// of a peer's exit, and sleeping.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/event_fd.h"
#include "transport/memory/channel_table.h"
#include "transport/memory/doorbell.h"
#include "transport/memory/frame_stream.h"
#include "transport/transport.h"

namespace horoscale {

// The same on all ranks of a job.
struct MemoryOptions {
  BankGeometry banks;
  size_t ring_bytes = 64 << 10;  // size of a control ring, a power of two
  bool operator==(const MemoryOptions&) const = default;
};
Status CheckOptions(const MemoryOptions& options);

class MemoryTransport : public Transport, private ChannelHost {
 public:
  ~MemoryTransport() override;

  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(links_.size()); }
  void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload) final;
  bool Poll(TransportSink& sink) final;
  bool HasUnsent() const final;
  Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks) final;
  void Forget(ChannelId channel) final { channels_.Forget(channel); }
  void Arm() final;
  void Disarm() final;
  void Ring(int rank) final { DoorbellOf(rank)->Ring(); }
  TransportCounters counters() const final;

 protected:
  // The connection to a peer. The memory outlives the transport.
  struct LinkEnds {
    std::byte* out_ring = nullptr;
    std::byte* in_ring = nullptr;
    SleepFlag* sleeping = nullptr;      // of the peer
    const EventFd* doorbell = nullptr;  // of the peer
  };

  // `sleeping` and `doorbell` belong to this rank and outlive the transport.
  MemoryTransport(int rank, int size, const MemoryOptions& options, SleepFlag* sleeping,
                  const EventFd* doorbell);
  // Must be called for every peer before the first use.
  void Connect(int rank, const LinkEnds& ends);

  // Detects peers that have exited and calls MarkEnded() for them. Called by each Poll().
  virtual void CheckPeers() = 0;
  // The peer has exited and writes nothing more. Its remaining data is delivered, then the sink is
  // notified. `how` is, for example, "its process ended".
  void MarkEnded(int rank, std::string_view how);

  // The part of Close() that uses the rings: sends the frame after all other data.
  void SendLast(std::span<const std::byte> last_frame, const Deadline& deadline);

  // The error for a peer's memory that can't be read.
  static Status UnreadableRank(int rank, std::string_view why);

  const MemoryOptions& options() const { return options_; }

 private:
  struct Link {
    Link(const LinkEnds& ends, size_t ring_bytes);
    Doorbell doorbell;
    FrameWriter out;
    FrameReader in;
    enum class State {
      kUp,
      kEnding,  // the peer has exited: its remaining data is still delivered
      kOver,    // nothing more is delivered
      kLost,    // and the sink has been notified
    };
    State state = State::kUp;
    Status reason;  // set when the state is not kUp
  };

  // ChannelHost
  Result<std::byte*> AllocateBlock(size_t bytes) override { return AllocateShared(bytes); }
  void FreeBlock(std::byte* block) override { FreeShared(block); }
  std::byte* PeerBlock(int rank, int64_t offset, size_t bytes) override;
  int64_t OwnOffset(const std::byte* memory, size_t bytes) const override {
    return SharedOffset(memory, bytes);
  }
  void Notify(int rank, ChannelId channel, BankNotice::Type type, const std::byte* block) override;
  bool IsLost(int rank) const override {
    return links_[static_cast<size_t>(rank)]->state == Link::State::kLost;
  }
  Doorbell* DoorbellOf(int rank) override { return &links_[static_cast<size_t>(rank)]->doorbell; }

  bool PollLink(int rank, Link& link, TransportSink& sink);
  bool DeliverFrames(int rank, Link& link, TransportSink& sink);
  Status Deliver(int rank, const Frame& frame, TransportSink& sink);
  bool Flush(int rank, Link& link);
  // Stops delivery from the link, for `reason`.
  static void Finish(Link& link, Status reason);
  // Finishes a link that has delivered invalid data.
  void Break(int rank, Link& link, const Status& why);

  const int rank_;
  const MemoryOptions options_;
  SleepFlag* sleeping_;
  const EventFd* doorbell_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null for this rank and unconnected ones
  TransportCounters counters_;
  ChannelTable channels_;
};

}  // namespace horoscale
