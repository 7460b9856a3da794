// MessageExchange: the data plane of one process set over messages. Each member has banks() chunks
// for every other one. A sent chunk occupies the receiver's bank until the receiver releases the
// round and notifies the sender; members that have sent nothing are not notified.
//
// A member that has not opened the set has no banks for it. No chunk can be reserved until all
// linked members have opened it. A link to an unlinked member is created when something is
// published for it; the chunk is queued until the member has opened the set. No links are created
// to members to which nothing is sent.
//
// A transport may divide a chunk into parts, which may arrive in any order. The first parts of
// chunks must arrive in the order in which they were sent, because they announce the chunks.
//
// Some members may be served by another exchange, which shares memory with them (see
// transport/hosts).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "transport/exchange.h"
#include "transport/message/message.h"
#include "transport/transport.h"

namespace horoscale {

// The interface of an exchange to its transport.
class MessagePost {
 public:
  virtual ~MessagePost() = default;
  // Sends a message without a payload.
  virtual void PostMessage(int rank, const MessageHeader& header) = 0;
  // Sends the data of a chunk in place or from a copy. `pending` counts unsent messages, and its
  // memory and the data must remain valid until they are sent.
  virtual void PostChunk(int rank, const MessageHeader& header, std::span<const std::byte> data,
                         const std::shared_ptr<const void>& memory, uint32_t* pending) = 0;

  // Transports may create links on demand. Without a link, nothing is posted to the rank or
  // received from it.
  enum class LinkState : uint8_t { kNone, kUp, kLost };
  virtual LinkState StateOf(int) const { return LinkState::kUp; }
  // Whether chunks can be relocated while they are being sent.
  virtual bool CanMoveChunks() const { return false; }
  // Unsent data of the messages that `pending` counts is sent from the copy at `to` instead of
  // `from`.
  virtual void MoveChunk(const uint32_t* pending, const std::byte* from, const std::byte* to) {
    (void)pending, (void)from, (void)to;
  }

  // Requests a link to a rank; MessageChannels::OnLinked() is called when it is up.
  virtual void Reach(int) {}

  // Number of chunks of all exchanges that wait for their readers.
  size_t waiting_chunks = 0;
  // Number of exchanges with unsent releases.
  size_t owing_exchanges = 0;
};

class MessageExchange final : public Exchange {
 public:
  static constexpr size_t kChunkBytes = 256 << 10;
  static constexpr uint32_t kBanks = 4;
  static constexpr uint32_t kMaxParts = 4;  // of a chunk

  // `served[m]`: whether member m is reached by messages; this rank is not. `hosts` is what
  // hosts() returns. Null if there is no memory. `on_destroy` is called last; both belong to the
  // transport.
  static std::unique_ptr<MessageExchange> Create(ChannelId channel, std::span<const int> ranks,
                                                 uint32_t self, std::vector<bool> served,
                                                 std::vector<uint32_t> hosts, MessagePost* post,
                                                 TransportCounters* counters,
                                                 std::function<void()> on_destroy);
  ~MessageExchange() override;

  // The transport was destroyed: the exchange may only be destroyed afterwards.
  void Orphan() {
    post_ = nullptr;
    on_destroy_ = [] {};
  }

  uint32_t size() const override { return static_cast<uint32_t>(ranks_.size()); }
  uint32_t self() const override { return self_; }
  std::span<const uint32_t> hosts() const override { return hosts_; }
  size_t chunk_bytes() const override { return kChunkBytes; }
  uint32_t banks() const override { return kBanks; }
  std::byte* Reserve(uint64_t round) override;
  void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents) override;
  bool PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                      std::span<const Extent> extents) override;
  bool HasLeft(uint64_t round) const override;
  const std::byte* Peek(uint64_t round, uint32_t member) override;
  void Release(uint64_t round) override;
  void Withdraw() override;

  // Sends pending releases. A single released round is held back until this call, because the next
  // one usually follows immediately, and there are more banks.
  void TellReleased();

  // Reserve() and Publish() for a chunk in other memory, which must remain valid for `banks()`
  // rounds.
  bool MayPublish(uint64_t round) const;
  void PublishFrom(const std::byte* chunk, uint64_t round, size_t bytes,
                   std::span<const Extent> extents);

  // A link to a member was created.
  void OnLinked(uint32_t member);
  void OnLost(uint32_t member);
  // Messages from a member.
  void OnOpened(uint32_t member);
  void OnReleased(uint32_t member, uint64_t rounds);
  // The destination of a part of the member's chunk; OnArrived() reports that it is complete. Null
  // if the member may not send it.
  std::byte* Accept(uint32_t member, const MessageHeader& header);
  void OnArrived(uint32_t member, uint64_t round);

  // Whether a chunk waits for the member.
  bool HasWaiting(uint32_t member) const { return waiting_.contains(member); }

  // Keeps all banks alive.
  std::shared_ptr<const void> memory() const { return memory_; }

 private:
  struct Bank {
    uint64_t round = 0;
    bool used = false;
    bool arrived = false;
    uint32_t unbegun = 0;  // parts whose arrival has not begun
    uint32_t missing = 0;  // parts that have not arrived, these among them
    // For this member's banks:
    uint32_t unsent = 0;                  // messages that still read the chunk
    std::span<const std::byte> borrowed;  // the chunk's memory, if it is not in the bank
  };
  struct Member {
    bool linked = false;
    bool opened = false;
    Bank banks[kBanks];
    uint64_t released = 0;       // the member has released the rounds below it
    uint64_t told_released = 0;  // the last value of which it was notified
    uint64_t begun = 0;          // its chunks of rounds below have arrived or been announced
    uint64_t sent[kBanks] = {};  // by own bank: the member occupies it until it releases below this
  };
  // A chunk, or part of it, that waits until its reader has opened the set.
  struct Waiting {
    MessageHeader header;
    std::span<const std::byte> data;
  };
  // The banks' bytes and their states: sends in flight refer to both.
  struct Memory {
    std::unique_ptr<std::byte, void (*)(std::byte*)> bytes{nullptr, nullptr};
    std::vector<Member> members;
  };

  MessageExchange(ChannelId channel, std::span<const int> ranks, uint32_t self,
                  std::vector<bool> served, std::vector<uint32_t> hosts, MessagePost* post,
                  TransportCounters* counters, std::function<void()> on_destroy);
  std::byte* Chunk(uint32_t member, uint64_t round) const {
    return memory_->bytes.get() + (member * kBanks + round % kBanks) * kChunkBytes;
  }
  Member& At(uint32_t member) const { return memory_->members[member]; }
  uint64_t ReleasedOf(const Member& member) const;
  enum class Tell : uint8_t { kMuch, kAll };
  void TellReleased(uint32_t member, Tell tell);
  void Owe(bool owes);
  void Post(uint32_t member, const Waiting& chunk);
  // Removes and returns the member's waiting chunks.
  std::vector<Waiting> TakeWaiting(uint32_t member);
  MessageHeader Header(MessageType type, uint64_t round) const {
    return {type, FrameKind::kBank, channel_.process_set, channel_.incarnation, 0, 0, 0, 0, 0,
            round};
  }

  const ChannelId channel_;
  const std::vector<int> ranks_;
  const uint32_t self_;
  const std::vector<bool> served_;
  const std::vector<uint32_t> hosts_;
  const std::shared_ptr<Memory> memory_;
  uint64_t published_ = 0;                            // own rounds below it were published or
                                                      // skipped
  bool owes_ = false;                                 // whether TellReleased() has something to
                                                      // send
  uint32_t unopened_ = 0;                             // members with a link that have not opened it
  std::map<uint32_t, std::vector<Waiting>> waiting_;  // by member
  MessagePost* post_;
  TransportCounters* counters_;
  std::function<void()> on_destroy_;
};

}  // namespace horoscale
