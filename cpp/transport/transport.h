// Transport: how the ranks of a job reach each other. One implementation per folder beside this
// file, with the same file names in each, and one conformance suite (tests/cpp/conformance).
//
// Two planes. Control: frames, reliable and in order per pair of ranks. Data: an Exchange per
// process set. They don't share flow control: a set that stalls blocks neither the control plane
// nor another set. A transport is driven by one thread at a time (the engine's owner); only Wake()
// may be called by any thread. Nothing here blocks except Sleep().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/channel_id.h"
#include "transport/exchange.h"

namespace horoscale {

class StagingAreas;

enum class FrameKind : uint16_t {
  kReport = 1,       // core/messages.h: Report
  kPlan = 2,         // PlanEntry
  kGoodbye = 3,      // Goodbye; the last frame of a link
  kPoison = 4,       // Goodbye: the sender has given up an operation of this set half-way; or, if
                     // that is clean, it has removed the set by itself
  kStall = 5,        // StallNotice, to rank 0
  kProbe = 6,        // one byte: 0 asks whether the rank's engine runs, 1 answers
  kLaunch = 7,       // LaunchStamp: a member's proposal, the coordinator's decision
  kGroupReport = 8,  // core/messages.h: GroupReport, of a member for others as well
  kLoss = 9,         // core/messages.h: LossNotice; of transports whose ranks don't all have links
  kMessage = 10,     // core/message_frames.h: MessageFrame
  kCreation = 12,    // core/set_creation_frames.h: SetCreationFrame, of no process set
  kPost = 14,        // core/messages.h: Post, with the member's tensors
  kBank = 16,        // transports' own, never delivered: where a member's chunks live
};

struct FrameHeader {
  FrameKind kind = FrameKind::kReport;
  ChannelId channel;
};

// Receives what Poll() finds. Called only from inside Poll().
class TransportSink {
 public:
  virtual ~TransportSink() = default;
  virtual void OnFrame(int from_rank, const FrameHeader& header,
                       std::span<const std::byte> payload) = 0;
  // The rank can't be reached any more, said once, after its last frame has been delivered.
  // `reason` says how it was seen ("its process ended", "connection reset"). kTimeout: this rank
  // alone can't reach it, of which no other one is told.
  virtual void OnRankLost(int rank, const Status& reason) = 0;
  // Whether the set was registered here once and is no more: what still comes of it means nothing.
  virtual bool IsOver(ChannelId) const { return false; }
};

// Of what comes while a rank leaves nothing matters any more.
class NoSink final : public TransportSink {
 public:
  void OnFrame(int, const FrameHeader&, std::span<const std::byte>) override {}
  void OnRankLost(int, const Status&) override {}
};

struct TransportCounters {
  uint64_t control_frames_sent = 0;
  uint64_t control_frames_received = 0;
  uint64_t control_bytes_sent = 0;
  uint64_t socket_frames_sent = 0;  // of the above, those that took a system call
  uint64_t data_bytes_sent = 0;     // published chunks
  uint64_t network_bytes_sent = 0;  // of the chunks, those that left the host
  uint64_t doorbells_rung = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The hosts of these ranks, which are sorted, as Exchange::hosts() numbers them; empty if they
  // are all on one. All ranks answer the same.
  virtual std::vector<uint32_t> HostsOf(std::span<const int>) const { return {}; }

  // Sends a frame to another rank. Never blocks: what the link can't take now is kept and sent by
  // later calls of Poll(). Frames to a lost rank are dropped.
  virtual void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload) = 0;

  // Delivers what has come, sends what was kept. Returns whether anything moved.
  virtual bool Poll(TransportSink& sink) = 0;

  // Whether frames are kept that a link could not take yet: the engine goes on polling until they
  // are sent, although nothing of its own is pending.
  virtual bool HasUnsent() const = 0;

  // Opens the data plane of a set. `ranks` are its members' global ranks, sorted, and hold rank().
  // Local: the others need not have called it yet. Destroying the Exchange gives its memory back.
  virtual Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks) = 0;

  // The set is over, and Open() will not be called for it: what peers have said of theirs is
  // forgotten. Nothing happens to a data plane that was opened here.
  virtual void Forget(ChannelId channel) = 0;

  // Going to sleep is two calls, so that no wake-up is lost: Arm() makes peers ring from now on;
  // the caller then polls once more everything that it waits for and, if there is still nothing,
  // calls Sleep(), which returns when a peer rings, Wake() is called, a rank is lost or the time is
  // over. Disarm() ends it in both cases.
  virtual void Arm() = 0;
  virtual void Sleep(double seconds) = 0;
  virtual void Disarm() = 0;

  // Ends Sleep(), now or at its next call. Any thread; async-signal-safe.
  virtual void Wake() = 0;

  // Memory that every rank of the host can reach, for tensors that are reduced in place. Any
  // thread.
  virtual Result<std::byte*> AllocateShared(size_t bytes) = 0;
  virtual void FreeShared(std::byte* memory) = 0;

  // Where `rank` sees what is at [memory, memory + bytes) here, as an offset that peers understand;
  // -1 if it is not (all) memory from AllocateShared().
  virtual int64_t SharedOffset(const std::byte* memory, size_t bytes) const = 0;
  // The memory of a member's shared offset in this process; null if it can't be reached.
  virtual std::byte* SharedAddress(int rank, int64_t offset, size_t bytes) const = 0;

  // Copies what lies at `address` in the process of `rank`, in memory of its own. False if that
  // can't be done: another host, or the system refuses it.
  virtual bool ReadMemory(int rank, uint64_t address, std::span<std::byte> into) {
    (void)rank, (void)address, (void)into;
    return false;
  }

  // For messages to and from memory of `rank` that ReadMemory() can read; null where it can't.
  virtual StagingAreas* StagingWith(int rank) {
    (void)rank;
    return nullptr;
  }
  // Gives memory back that was not used for a while; called now and then.
  virtual void GiveBackIdle(double now) { (void)now; }

  // Ends the sleep of a rank for which StagingWith() has areas, if it sleeps: after a seq_cst store
  // of what it looks at once it has armed.
  virtual void Ring(int rank) { (void)rank; }

  // `look` is called, by a thread of the transport, when a rank may be lost of which this one has
  // to tell others: who drives the transport should poll it soon. Before the first Poll(); never
  // after Close().
  virtual void CallOnEnd(std::function<void()> look) { (void)look; }

  // Before Close(): polls until what others need of this rank has a link. The ranks to which some
  // of it was not delivered, because they can't be reached, or not within `seconds`.
  virtual std::vector<int> AwaitLinks(double seconds) {
    (void)seconds;
    return {};
  }

  virtual TransportCounters counters() const = 0;
  // Of network_bytes_sent, what went to each rank; of ranks to which nothing went there is none.
  virtual std::vector<std::pair<int, uint64_t>> LinkBytes() const { return {}; }

  // Sends `last_frame` (a Goodbye) on every link, as far as that goes without waiting longer than
  // `seconds`, and closes all of them.
  virtual void Close(std::span<const std::byte> last_frame, double seconds) = 0;
};

}  // namespace horoscale
