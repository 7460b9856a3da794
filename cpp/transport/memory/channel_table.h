// ChannelTable: maps members of channels to their blocks of memory, and tracks their lifetime.
//
// Members open and close a channel at different times. A block that a member announces before the
// channel is open here is recorded. This rank's block is freed only when every other member has
// closed the channel or is lost, because until then it may still be read.
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

// The content of a kBank frame, as sent over the wire.
struct BankNotice {
  enum class Type : uint64_t { kOpened = 1, kClosed = 2 };
  Type type = Type::kOpened;
  int64_t offset = 0;  // kOpened: shared offset of the sender's block
};
static_assert(sizeof(BankNotice) == 16);

// The interface of the table to its transport.
class ChannelHost {
 public:
  virtual ~ChannelHost() = default;
  virtual Result<std::byte*> AllocateBlock(size_t bytes) = 0;
  virtual void FreeBlock(std::byte* block) = 0;
  // The block at the peer's offset; null if the offset is invalid.
  virtual std::byte* PeerBlock(int rank, int64_t offset, size_t bytes) = 0;
  // The offset of this rank's shared memory; -1 if it is not shared.
  virtual int64_t OwnOffset(const std::byte* memory, size_t bytes) const = 0;
  // Whether the private memory of a peer can be read, whether peers can read private memory of this
  // rank, and the read itself.
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

  // Handles a kBank frame. kProtocol if it is invalid. `is_over`: the channel will not be opened
  // here.
  Status OnNotice(int from_rank, ChannelId channel, std::span<const std::byte> payload,
                  bool is_over);

  // The channel, if it is not open, will not be opened here.
  void Forget(ChannelId channel);

  void OnRankLost(int rank);

 private:
  struct Channel {
    std::vector<int> ranks;                 // empty: not open here yet
    BankExchange* exchange = nullptr;       // null: not open here yet, or closed
    std::byte* block = nullptr;             // ours
    std::map<int, std::byte*> peer_blocks;  // announced, by rank
    std::set<int> closed;                   // ranks that do not access our block (any more)
  };

  Status OnOpened(int from_rank, Channel& channel, int64_t offset);
  // Channels that peers have opened and this rank has not.
  void ForgetEarly(std::map<ChannelId, Channel>::iterator at);
  void Close(ChannelId id);
  // Frees the block and forgets the channel if no peer accesses it any more.
  void ForgetIfUnused(ChannelId id);

  const int rank_;
  const BankGeometry geometry_;
  ChannelHost* host_;
  TransportCounters* counters_;
  std::map<ChannelId, Channel> channels_;
  EarlyChannels early_;
};

}  // namespace horoscale
