// Transport: communication between the ranks of a job. There is one implementation per folder
// beside this file, with the same file names in each, and one conformance suite
// (tests/cpp/conformance).
//
// There are two planes. Control: frames, reliable and ordered per pair of ranks. Data: an Exchange
// per process set. They do not share flow control: a stalled set blocks neither the control plane
// nor other sets. One thread at a time, the engine's owner, drives a transport; only Wake() may be
// called by any thread. Only Sleep() blocks.
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
  kPoison = 4,       // Goodbye: the sender has abandoned an operation of this set; or, if clean, it
                     // has removed the set by itself
  kStall = 5,        // StallNotice, to rank 0
  kProbe = 6,        // one byte: 0 asks whether the rank's engine runs, 1 is the answer
  kLaunch = 7,       // LaunchStamp: a member's proposal, the coordinator's decision
  kGroupReport = 8,  // core/messages.h: GroupReport, from a member on behalf of several
  kLoss = 9,         // core/messages.h: LossNotice; for transports whose ranks are not all linked
  kMessage = 10,     // core/message_frames.h: MessageFrame
  kCreation = 12,    // core/set_creation_frames.h: SetCreationFrame, without a process set
  kPost = 14,        // core/messages.h: Post, with the member's tensors
  kBank = 16,        // internal to transports, never delivered: the location of a member's chunks
};

struct FrameHeader {
  FrameKind kind = FrameKind::kReport;
  ChannelId channel;
};

// Receives what Poll() finds. Called only by Poll().
class TransportSink {
 public:
  virtual ~TransportSink() = default;
  virtual void OnFrame(int from_rank, const FrameHeader& header,
                       std::span<const std::byte> payload) = 0;
  // The rank has become unreachable. Called once, after its last frame has been delivered. `reason`
  // describes how that was detected ("its process ended", "connection reset"). kTimeout: only this
  // rank can't reach it, and other ranks are not notified.
  virtual void OnRankLost(int rank, const Status& reason) = 0;
  // Whether the set was registered here and has been removed: its late messages are ignored.
  virtual bool IsOver(ChannelId) const { return false; }
};

// Ignores everything that arrives while a rank leaves.
class NoSink final : public TransportSink {
 public:
  void OnFrame(int, const FrameHeader&, std::span<const std::byte>) override {}
  void OnRankLost(int, const Status&) override {}
};

struct TransportCounters {
  uint64_t control_frames_sent = 0;
  uint64_t control_frames_received = 0;
  uint64_t control_bytes_sent = 0;
  uint64_t socket_frames_sent = 0;  // number of those that needed a system call
  uint64_t data_bytes_sent = 0;     // published chunks
  uint64_t network_bytes_sent = 0;  // bytes of chunks that left the host
  uint64_t doorbells_rung = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The hosts of these sorted ranks, numbered as by Exchange::hosts(); empty if all are on one
  // host. The same on all ranks.
  virtual std::vector<uint32_t> HostsOf(std::span<const int>) const { return {}; }

  // Sends a frame to another rank. Never blocks: data that the link can't accept now is queued and
  // sent by later calls of Poll(). Frames to a lost rank are dropped.
  virtual void Send(int to_rank, const FrameHeader& header, std::span<const std::byte> payload) = 0;

  // Delivers received data and sends queued data. Returns whether there was any progress.
  virtual bool Poll(TransportSink& sink) = 0;

  // Whether frames are queued. The engine continues to poll until they are sent, even if it has no
  // pending work.
  virtual bool HasUnsent() const = 0;

  // Opens the data plane of a set. `ranks` are its members' global ranks, sorted, and include
  // rank(). Local: the others need not have called it yet. Destroying the Exchange frees its
  // memory.
  virtual Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks) = 0;

  // The set has been removed, and Open() will not be called for it: forgets the peers'
  // announcements. Does not affect a data plane that was opened here.
  virtual void Forget(ChannelId channel) = 0;

  // Sleeping takes two calls, so that no wake-up is lost. After Arm(), peers ring the doorbell. The
  // caller then polls everything once more and, if there is still nothing, calls Sleep(), which
  // returns when a peer rings, Wake() is called, a rank is lost or the time has passed. Disarm()
  // must be called in both cases.
  virtual void Arm() = 0;
  virtual void Sleep(double seconds) = 0;
  virtual void Disarm() = 0;

  // Ends the current or the next Sleep(). Any thread; async-signal-safe.
  virtual void Wake() = 0;

  // Allocates memory that every rank of the host can access, for tensors that are reduced in place.
  // Any thread.
  virtual Result<std::byte*> AllocateShared(size_t bytes) = 0;
  virtual void FreeShared(std::byte* memory) = 0;

  // The offset under which peers find [memory, memory + bytes); -1 unless all of it was allocated
  // by AllocateShared().
  virtual int64_t SharedOffset(const std::byte* memory, size_t bytes) const = 0;
  // The address in this process of a rank's shared offset; null if it is not accessible.
  virtual std::byte* SharedAddress(int rank, int64_t offset, size_t bytes) const = 0;

  // Copies from `address` in private memory of another rank's process. Returns false if that is
  // impossible: the rank is on another host, or the system refuses.
  virtual bool ReadMemory(int rank, uint64_t address, std::span<std::byte> into) {
    (void)rank, (void)address, (void)into;
    return false;
  }

  // Staging areas for messages to and from private memory of `rank`; null if ReadMemory() can't
  // read it.
  virtual StagingAreas* StagingWith(int rank) {
    (void)rank;
    return nullptr;
  }
  // Frees memory that has been unused for a while; called periodically.
  virtual void GiveBackIdle(double now) { (void)now; }

  // Wakes a rank for which StagingWith() has areas, if it sleeps. Call it after a seq_cst store of
  // data that the rank checks after Arm().
  virtual void Ring(int rank) { (void)rank; }

  // Registers `look`, which a thread of the transport calls when a rank may be lost and others must
  // be notified: the transport should then be polled soon. Call it before the first Poll(); `look`
  // is not called after Close().
  virtual void CallOnEnd(std::function<void()> look) { (void)look; }

  // Called before Close(): polls until all data that others need from this rank has a link. Returns
  // the ranks to which some of it was not delivered, because they are unreachable, or not reachable
  // within `seconds`.
  virtual std::vector<int> AwaitLinks(double seconds) {
    (void)seconds;
    return {};
  }

  virtual TransportCounters counters() const = 0;
  // network_bytes_sent by destination rank, without ranks to which nothing was sent.
  virtual std::vector<std::pair<int, uint64_t>> LinkBytes() const { return {}; }

  // Sends `last_frame` (a Goodbye) on every link, for at most `seconds`, and closes all links.
  virtual void Close(std::span<const std::byte> last_frame, double seconds) = 0;
};

}  // namespace horoscale
