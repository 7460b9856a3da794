// MessageExchange: the data plane of one process set over messages. Each member keeps banks()
// chunks of every other one. What a member sends another occupies the bank there until that has
// released the round, and says so; nothing is said to members that have sent nothing.
//
// A member that has not opened the set yet has no banks for it. No chunk is reserved while one to
// which there is a link has not. One to which there is none gets a link when something is published
// for it, which waits until the member has opened the set; to members that are sent nothing no link
// is made.
//
// A transport may divide a chunk into parts, which arrive in any order. The chunks' first parts
// must arrive in the order in which they were sent: by them a member knows what is on its way.
//
// Members may be left to another exchange, which shares memory with them (see transport/hosts).
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

// What an exchange needs of its transport.
class MessagePost {
 public:
  virtual ~MessagePost() = default;
  // Sends a message without a payload.
  virtual void PostMessage(int rank, const MessageHeader& header) = 0;
  // Sends the data of a chunk from where it is, or from a copy. `pending` counts what has not left
  // yet, and the memory of both lives until then.
  virtual void PostChunk(int rank, const MessageHeader& header, std::span<const std::byte> data,
                         const std::shared_ptr<const void>& memory, uint32_t* pending) = 0;

  // Transports may make links when they are needed first. While there is none, nothing is posted to
  // the rank, and nothing comes from it.
  enum class LinkState : uint8_t { kNone, kUp, kLost };
  virtual LinkState StateOf(int) const { return LinkState::kUp; }
  // Whether chunks can be moved while they are being sent.
  virtual bool CanMoveChunks() const { return false; }
  // What has not been sent yet of the messages that `pending` counts is sent from a copy, in which
  // `to` stands for `from`.
  virtual void MoveChunk(const uint32_t* pending, const std::byte* from, const std::byte* to) {
    (void)pending, (void)from, (void)to;
  }

  // Has a link made to a rank to which there is none; MessageChannels::OnLinked() says that it is.
  virtual void Reach(int) {}

  // Chunks of exchanges that wait for their readers.
  size_t waiting_chunks = 0;
  // Exchanges that owe their members word of what they have released.
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

  // The transport is gone: the exchange may still be destroyed, but not used.
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

  // Tells the members what is released and they have not been told. One round alone waits for this:
  // the next one mostly follows at once, and there are more banks.
  void TellReleased();

  // Reserve() and Publish() of a chunk that lives elsewhere, until `banks()` rounds later.
  bool MayPublish(uint64_t round) const;
  void PublishFrom(const std::byte* chunk, uint64_t round, size_t bytes,
                   std::span<const Extent> extents);

  // There is a link to a member.
  void OnLinked(uint32_t member);
  void OnLost(uint32_t member);
  // What has come of a member.
  void OnOpened(uint32_t member);
  void OnReleased(uint32_t member, uint64_t rounds);
  // Where the part of the member's chunk belongs, which OnArrived() says is there; null if the
  // member may not send it.
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
    // Of own banks:
    uint32_t unsent = 0;                  // messages that still read the chunk
    std::span<const std::byte> borrowed;  // where that is, if not in the bank
  };
  struct Member {
    bool linked = false;
    bool opened = false;
    Bank banks[kBanks];
    uint64_t released = 0;       // rounds below it, as far as the member has said so
    uint64_t told_released = 0;  // what it has been told
    uint64_t begun = 0;          // what it has sent of rounds below is here or on its way
    uint64_t sent[kBanks] = {};  // by own bank: the member occupies it until it releases below this
  };
  // A chunk, or some of it, that waits until its reader has opened the set.
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
  // Those of the member wait no longer.
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
  uint64_t published_ = 0;                            // own rounds below it, or left out
  bool owes_ = false;                                 // TellReleased() has something to tell
  uint32_t unopened_ = 0;                             // members with a link that have not opened it
  std::map<uint32_t, std::vector<Waiting>> waiting_;  // by member
  MessagePost* post_;
  TransportCounters* counters_;
  std::function<void()> on_destroy_;
};

}  // namespace horoscale
