// SetMessages: the sends and receives of one process set on this rank, from enqueue to completion.
// The mailbox matches receives and messages; this class transfers the data.
//
// A small message is sent with its envelope. The receiver of an offered message reads it in place
// if it can access it: in this process, in shared memory, or in the private memory of a process on
// this host, where the sender helps (set_messages_staging.cc). Otherwise it requests the data in
// frames, of which a bounded number is in flight. A view does not copy: it accesses the message in
// the sender's memory, which is returned to the sender when the view is released.
//
// NCCL transfers a large message between CUDA tensors if it has a position in the launch order
// (message_launches.h). All other CUDA tensors go through pinned memory. A send is copied there
// before it is announced, and delays later sends with the same tag. A receive gets pinned memory
// when its message arrives, and is launched when the message is complete. Such a copy completes
// even if the set has failed.
//
// Called by the engine's owner; no function blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/nccl/message_copies.h"
#include "core/mailbox.h"
#include "core/message_frames.h"
#include "runtime/message_launches.h"
#include "runtime/operation.h"
#include "runtime/set_place.h"
#include "transport/shm/staging_areas.h"
#include "transport/transport.h"

namespace horoscale {

class SetMessages {
 public:
  using Finish = std::function<void(const OperationPtr& operation, const Status& status)>;

  // `launched` is called when a message of a CUDA tensor is launched.
  SetMessages(Transport& transport, const SetPlace& place, MessageLaunches& launches, Finish finish,
              std::function<void()> launched)
      : transport_(transport),
        place_(place),
        launches_(launches),
        finish_(std::move(finish)),
        launched_(std::move(launched)) {}

  // Adds a send or a receive, which the next step starts.
  void Submit(OperationPtr operation);
  // kProtocol for an invalid frame.
  Status OnFrame(int from_rank, std::span<const std::byte> bytes);
  // Makes progress by at most one piece; returns whether there was any. kProtocol as for OnFrame().
  Result<bool> Step();

  bool Busy() const { return !pending_.empty() || !loopback_.empty(); }
  // Unfinished operations, by age.
  const std::map<Token, OperationPtr>& pending() const { return pending_; }
  // The number of unexpected messages.
  size_t num_kept() const { return mailbox_.num_kept(); }

  // NCCL has submitted the message to the device.
  void OnLaunched(const OperationPtr& operation);
  // Whether a device is executing work whose completion must be polled; whether callers' streams
  // may wait for it; and whether it is on the set's lane.
  bool WaitsForDevice() const { return !at_device_.empty() || !launches_.empty(); }
  bool HasLaunched() const;
  bool UsesLane() const;

  bool HasDeviceTensors() const;

  // The peer has left normally, and no CUDA tensor is pending. Finishes pending operations with it,
  // and receives from any peer that have no message. Messages of host memory continue with the
  // other members. The first later receive from any peer with each tag also fails, to notify its
  // caller; further ones wait for the remaining members.
  void Leave(int peer, const Status& cause);
  bool HasLeft(int peer) const { return left_.contains(peer); }
  // The set has failed: finishes pending operations, except those that a device is copying.
  // Completely received messages can still be matched.
  void Fail(const Status& cause);
  // For operations after a failure: a receive returns a received message if there is one; all other
  // operations fail with `cause`.
  void ReceiveWhatCame(const OperationPtr& operation, const Status& cause);
  // After a failure or the departure of a member: finishes operations whose copies are complete,
  // those of NCCL when the set's lane has ended, and all after some seconds; returns whether it
  // finished any.
  bool StepFailed(double now, bool has_lane_ended);

 private:
  using Key = std::pair<int, uint64_t>;  // peer, number
  // An offered message, on its sender.
  struct Outgoing {
    OperationPtr operation;
    bool has_area = false;   // whether it was offered with a staging area
    bool by_frames = false;  // asked for
    uint64_t sent = 0;
    uint64_t taken = 0;
    uint32_t use = 0;  // use of the area, when it is requested
  };
  // An offered message that has matched its receive.
  struct Incoming {
    OperationPtr operation;  // null for a view until it is released
    MessageSource source;
    uint64_t bytes = 0;
    bool by_frames = false;
    bool by_nccl = false;
    bool told = false;  // whether the sender knows that it was read or viewed
    uint64_t taken = 0;
    const Operation* view = nullptr;  // that sees it
    std::unique_ptr<StagingAreas::Incoming> staged = nullptr;
    int64_t waits_since_ns = 0;  // waiting for its sender's staging since; 0: not waiting
  };
  struct Peer {
    explicit Peer(const EagerLimits& bounds) : limits(bounds), credit(bounds) {}

    EagerLimits limits;
    EagerCredit credit;
    uint64_t next_number = 1;
    uint32_t offers = 0;               // unanswered offers
    std::deque<OperationPtr> held;     // sends that may not be offered yet, and later ones
    const Incoming* staged = nullptr;  // the current staged message of the peer
    std::deque<uint64_t> unstaged;     // messages that wait for its end
    uint32_t coming = 0;               // number of messages that are arriving in frames
    std::deque<uint64_t> uncleared;    // messages to request in frames when another one is complete
  };

  using Stream = std::tuple<int, uint8_t, int64_t>;  // of messages: receiver, channel, tag
  using OutgoingEntry = std::map<Key, Outgoing>::iterator;
  using IncomingEntry = std::map<Key, Incoming>::iterator;

  Peer& PeerAt(int rank);
  void BeginSubmitted();
  void Begin(const OperationPtr& operation);
  const Status* WhyNot(const Operation& operation);
  const Status* WhyNotOfAny(const Envelope& envelope);
  void BeginSend(const OperationPtr& operation);
  void AnnounceOrHold(const OperationPtr& operation);
  void Announce(const OperationPtr& operation);
  void Take(const OperationPtr& operation, ArrivedMessage message);
  bool Agrees(const OperationPtr& operation, int peer, uint64_t number, const Envelope& envelope);
  void ReceiveEager(const OperationPtr& operation, int peer, uint64_t number,
                    const Envelope& envelope, std::span<const std::byte> payload);
  bool See(IncomingEntry incoming);
  void Release(const OperationPtr& operation);
  void TellTaken(IncomingEntry incoming);
  void ReadPiece();
  void AskForFrames(IncomingEntry incoming);
  bool Read(int peer, const Incoming& incoming, std::span<std::byte> into);
  const std::byte* AddressOf(int peer, const MessageSource& source, uint64_t bytes) const;
  void Clear(int peer, uint64_t number);
  void GiveCredit(int peer);
  void Pump(int peer, uint64_t number, Outgoing& outgoing);
  void OnAnswered(int peer);
  void EndSend(OutgoingEntry outgoing, const Status& status);
  void EndReceive(IncomingEntry incoming);
  void ClearNext(int peer);

  Status TakeFrame(int from_rank, const MessageFrame& frame);
  Status OnArrival(int from_rank, const MessageFrame& frame);
  Status OnAnswer(int from_rank, const MessageFrame& frame);
  Status OnTaken(OutgoingEntry outgoing, uint64_t bytes);
  Status OnRefused(int from_rank, const MessageFrame& frame);
  Status OnContent(int from_rank, const MessageFrame& frame);
  Status OnData(IncomingEntry incoming, const MessageFrame& frame);
  Status OnWithdrawn(IncomingEntry incoming, const MessageFrame& frame);

  // Staging.
  MessageSource PrivateSource(int peer, const std::byte* memory, uint64_t bytes) const;
  Status OnStage(OutgoingEntry outgoing, uint32_t use);
  void StopStaging(int peer, Outgoing& outgoing);
  bool StepStaging();
  bool WaitsForStaged(IncomingEntry incoming);
  bool BeginStaged(IncomingEntry incoming);
  void EndStaged(IncomingEntry incoming);
  void ReadNext(int peer);
  bool ReadStaged(int peer, Incoming& incoming);

  // CUDA tensors.
  Status CopyToHost(const OperationPtr& operation);
  void Withdraw(OutgoingEntry outgoing, const Status& cause);
  void Deliver(const OperationPtr& operation);
  Result<bool> StepDevice();
  Status OnDeviceDone(const OperationPtr& operation, const Status& status);
  void AnnounceCopied(const Stream& stream);
  static bool IsOnDevice(const Operation& operation);
  static Stream StreamOf(const Operation& operation);
  // NCCL.
  void Propose(IncomingEntry incoming);
  Status OnProposed(OutgoingEntry outgoing, uint64_t stamp);
  Status OnAgreed(IncomingEntry incoming, uint64_t stamp);

  void Send(int peer, const MessageFrame& frame);
  void End(const OperationPtr& operation, const Status& status);

  Transport& transport_;
  const SetPlace& place_;
  MessageLaunches& launches_;
  const Finish finish_;
  const std::function<void()> launched_;
  Mailbox mailbox_;
  std::map<Token, OperationPtr> pending_;
  std::deque<OperationPtr> submitted_;  // of the pending ones
  std::map<int, Peer> peers_;
  std::map<Key, Outgoing> outgoing_;
  std::map<Key, Incoming> incoming_;
  std::deque<Key> reading_;    // messages that are read in turns, without those that wait for
                               // another one
  std::map<int, int> served_;  // number of staged outgoing messages, by peer
  std::deque<std::vector<std::byte>> loopback_;  // frames from this rank to itself

  MessageCopies copies_;
  std::vector<OperationPtr> at_device_;  // of the pending ones
  // Sends that wait until earlier ones have been copied.
  std::map<Stream, std::deque<OperationPtr>> copied_out_;
  std::map<int, Status> left_;                  // reasons of departures, by peer
  int last_left_ = -1;                          // of them
  std::set<std::pair<uint8_t, int64_t>> told_;  // channels and tags whose receives from any peer
                                                // were notified
  std::optional<Status> failure_;
  double give_up_at_ = 0;        // when to stop waiting for copies
  bool has_lane_ended_ = false;  // after a failure
};

}  // namespace horoscale
