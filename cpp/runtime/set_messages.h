// SetMessages: the sends and receives of one process set on this rank, from enqueue to completion.
// Which receive takes which message is the mailbox's business; this moves the bytes.
//
// A small message comes with its envelope. The bytes of an offered one are read by its receiver
// where they lie, if it can reach them: in this process, in shared memory, in the memory of a
// process of this host; there the sender helps (set_messages_staging.cc). Otherwise it asks for
// them in frames, of which a bounded number is under way. A view takes nothing: it sees the message
// at its sender's, who has it back when the view is released.
//
// A large message between CUDA tensors is carried by NCCL where that has a place in the launch
// order (message_launches.h). Any other CUDA tensor goes through pinned memory: a send is copied
// there before it is announced, and holds back those behind it that have its tag; a receive has
// room there when its message comes, and is launched when all of it has. Such a copy ends by
// itself, also when the set has failed.
//
// Called by the engine's owner; nothing blocks.
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

  // `launched` is called when a message of a CUDA tensor is.
  SetMessages(Transport& transport, const SetPlace& place, MessageLaunches& launches, Finish finish,
              std::function<void()> launched)
      : transport_(transport),
        place_(place),
        launches_(launches),
        finish_(std::move(finish)),
        launched_(std::move(launched)) {}

  // Takes a send or a receive, which the next step begins.
  void Submit(OperationPtr operation);
  // kProtocol: a frame that can't be.
  Status OnFrame(int from_rank, std::span<const std::byte> bytes);
  // Advances as far as one piece; whether anything moved. kProtocol as OnFrame().
  Result<bool> Step();

  bool Busy() const { return !pending_.empty() || !loopback_.empty(); }
  // What is not done, by age.
  const std::map<Token, OperationPtr>& pending() const { return pending_; }
  // Messages that came and nobody has asked for.
  size_t num_kept() const { return mailbox_.num_kept(); }

  // NCCL has given it to the device.
  void OnLaunched(const OperationPtr& operation);
  // Whether a device is at work, of which nothing but polling tells; whether for callers whose
  // streams may wait for it; and whether on the set's lane.
  bool WaitsForDevice() const { return !at_device_.empty() || !launches_.empty(); }
  bool HasLaunched() const;
  bool UsesLane() const;

  bool HasDeviceTensors() const;

  // The peer has left in good order, and no CUDA tensor is pending: ends what is pending with it,
  // and receives of any that have no message. With the others messages of the host go on. A receive
  // of any that comes later ends so too, the first of its tag: its caller has to know. If he calls
  // again, it is of those that are left.
  void Leave(int peer, const Status& cause);
  bool HasLeft(int peer) const { return left_.contains(peer); }
  // The set has failed: ends what is pending, except what a device copies. What has come as a whole
  // can still be received.
  void Fail(const Status& cause);
  // What comes after that: a receive ends with what has come, or with `cause`, as all else does.
  void ReceiveWhatCame(const OperationPtr& operation, const Status& cause);
  // After that, or after one has left: ends what has been copied meanwhile, what NCCL has when the
  // set's lane has ended, and all after some seconds; whether anything was.
  bool StepFailed(double now, bool has_lane_ended);

 private:
  using Key = std::pair<int, uint64_t>;  // peer, number
  // An offered message, at its sender.
  struct Outgoing {
    OperationPtr operation;
    bool has_area = false;   // offered with one
    bool by_frames = false;  // asked for
    uint64_t sent = 0;
    uint64_t taken = 0;
    uint32_t use = 0;  // of the area, once it is wanted
  };
  // An offered message that has found its receive.
  struct Incoming {
    OperationPtr operation;  // null: of a view, until that is released
    MessageSource source;
    uint64_t bytes = 0;
    bool by_frames = false;
    bool by_nccl = false;
    bool told = false;  // that it was read, or seen
    uint64_t taken = 0;
    const Operation* view = nullptr;  // that sees it
    std::unique_ptr<StagingAreas::Incoming> staged = nullptr;
    int64_t waits_since_ns = 0;  // for what its sender is staging; 0: doesn't
  };
  struct Peer {
    explicit Peer(const EagerLimits& bounds) : limits(bounds), credit(bounds) {}

    EagerLimits limits;
    EagerCredit credit;
    uint64_t next_number = 1;
    uint32_t offers = 0;               // not answered
    std::deque<OperationPtr> held;     // sends that may not be offered yet, and those behind them
    const Incoming* staged = nullptr;  // of it, under way
    std::deque<uint64_t> unstaged;     // wait for its end
    uint32_t coming = 0;               // by frames
    std::deque<uint64_t> uncleared;    // to come by frames when another one has come
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
  std::deque<Key> reading_;    // of them, by turns; not what waits for another one
  std::map<int, int> served_;  // outgoing ones that are staged, by peer
  std::deque<std::vector<std::byte>> loopback_;  // frames to this rank itself

  MessageCopies copies_;
  std::vector<OperationPtr> at_device_;  // of the pending ones
  // Sends whose turn comes when those before them have been copied.
  std::map<Stream, std::deque<OperationPtr>> copied_out_;
  std::map<int, Status> left_;                  // why they have, by peer
  int last_left_ = -1;                          // of them
  std::set<std::pair<uint8_t, int64_t>> told_;  // of that: channels and tags of receives of any
  std::optional<Status> failure_;
  double give_up_at_ = 0;        // what is copied then
  bool has_lane_ended_ = false;  // after a failure
};

}  // namespace horoscale
