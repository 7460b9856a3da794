// ChannelTable: which block of memory belongs to which member of which channel, and until when.
//
// Members open and close a channel at different times. A block that a member announces before the
// channel is open here is remembered; a block of ours is given back only when every other member
// has closed the channel too, or is lost, because until then it may still be read.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/channel_id.h"
#include "transport/early_channels.h"
#include "transport/memory/bank_exchange.h"
#include "transport/transport.h"

namespace horoscale {

// What a kBank frame says; the bytes are the wire's.
struct BankNotice {
  enum class Type : uint64_t { kOpened = 1, kClosed = 2 };
  Type type = Type::kOpened;
  int64_t offset = 0;  // kOpened: shared offset of the sender's block
};
static_assert(sizeof(BankNotice) == 16);

// What the table needs of its transport.
class ChannelHost {
 public:
  virtual ~ChannelHost() = default;
  virtual Result<std::byte*> AllocateBlock(size_t bytes) = 0;
  virtual void FreeBlock(std::byte* block) = 0;
  // The block at the peer's offset; null if there can't be one.
  virtual std::byte* PeerBlock(int rank, int64_t offset, size_t bytes) = 0;
  // The offset of this rank's shared memory; -1 if it is none.
  virtual int64_t OwnOffset(const std::byte* memory, size_t bytes) const = 0;
  // Whether the memory of a peer that is not shared can be read too, whether peers can read such
  // memory of this rank, and doing it.
  virtual bool CanReadPrivate(int) const { return false; }
  virtual bool CanBeRead(const std::byte*, size_t) const { return false; }
  virtual Status ReadPrivate(int, uint64_t, std::byte*, size_t) const {
    return Status::Internal("this exchange can't read private memory");
  }
  virtual void Notify(int rank, ChannelId channel, BankNotice::Type type,
                      const std::byte* block) = 0;
  virtual bool IsLost(int rank) const = 0;
  virtual Doorbell* DoorbellOf(int rank) = 0;
};

class ChannelTable {
 public:
  // Both outlive the table.
  ChannelTable(int rank, const BankGeometry& geometry, ChannelHost* host,
               TransportCounters* counters);
  ~ChannelTable();

  Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks);

  // A kBank frame has come. kProtocol if it can't be. `is_over`: nothing is opened here any more.
  Status OnNotice(int from_rank, ChannelId channel, std::span<const std::byte> payload,
                  bool is_over);

  // The channel will not be opened here, if it isn't open.
  void Forget(ChannelId channel);

  void OnRankLost(int rank);

 private:
  struct Channel {
    std::vector<int> ranks;                 // empty: not open here yet
    BankExchange* exchange = nullptr;       // null: not open here yet, or not any more
    std::byte* block = nullptr;             // ours
    std::map<int, std::byte*> peer_blocks;  // announced, by rank
    std::set<int> closed;                   // ranks that don't look at our block (any more)
  };

  Status OnOpened(int from_rank, Channel& channel, int64_t offset);
  // Those that peers have opened and this rank has not.
  void ForgetEarly(std::map<ChannelId, Channel>::iterator at);
  void Close(ChannelId id);
  // Gives the block back and forgets the channel if nobody looks at it any more.
  void ForgetIfUnused(ChannelId id);

  const int rank_;
  const BankGeometry geometry_;
  ChannelHost* host_;
  TransportCounters* counters_;
  std::map<ChannelId, Channel> channels_;
  EarlyChannels early_;
};

}  // namespace horoscale
