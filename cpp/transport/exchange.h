// Exchange: the data plane of one process set, as rounds of chunks.
//
// In every round each member may publish one chunk and read the chunks of the others. All members
// execute the same operations in the same order, so round numbers agree without being sent. A chunk
// is stored in memory of the transport: the sender writes it into the space that Reserve() returns,
// and readers read it where Peek() points. In shared memory, only the sender copies the bytes.
//
//     round        r            r+1          r+2       …
//     bank     r % banks    (r+1) % banks              a bank is written again only after all
//                                                      members have released its last round
//
// Rules. No function blocks: a call that would have to wait returns null, and the caller retries
// later. A member publishes rounds in increasing order and may skip rounds. It releases rounds in
// increasing order, and must eventually release all: Release(r) covers every round up to r. Only
// the engine's owner calls an Exchange, so no lock is needed. When a member is lost, no more chunks
// arrive; the runtime detects this and drops the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace horoscale {

// Memory that the members of an exchange can access directly, if the transport provides it.
// Addresses are exchanged as offsets, which each member converts to its own addresses.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // -1 unless all of [memory, memory + bytes) is in this member's shared memory.
  virtual int64_t OffsetOf(const std::byte* memory, size_t bytes) const = 0;
  // Null if the member has no such memory.
  virtual std::byte* AddressOf(uint32_t member, int64_t offset, size_t bytes) const = 0;

  // Whether this member can read the private memory of all others, which the system may permit to
  // processes of the same user.
  virtual bool ReadsPrivate() const { return false; }
  // Whether other members can read this private memory. False for device memory and for memory that
  // a device driver has pinned.
  virtual bool CanBeRead(const std::byte* memory, size_t bytes) const {
    (void)memory, (void)bytes;
    return false;
  }
  // Copies `bytes` from an address of another member. If that fails, for example because its
  // process has exited, the error names its rank.
  virtual Status ReadPrivate(uint32_t member, uint64_t address, std::byte* to, size_t bytes) const {
    (void)member, (void)address, (void)to, (void)bytes;
    return Status::Internal("this exchange can't read memory of other ranks");
  }
};

class Exchange {
 public:
  // The bytes of a chunk that one reader reads. Transports without shared memory transfer only
  // these.
  struct Extent {
    size_t offset = 0;
    size_t bytes = 0;
  };

  virtual ~Exchange() = default;

  virtual uint32_t size() const = 0;  // members
  virtual uint32_t self() const = 0;  // this member's index
  // The host of each member, numbered 0, 1, … in the order of the hosts' lowest members; empty if
  // all members are on one host. The same on all members. Algorithms use it to send each byte only
  // once between hosts.
  virtual std::span<const uint32_t> hosts() const { return {}; }
  // Capacity of a chunk: a multiple of 4096. A chunk may be empty for some members.
  virtual size_t chunk_bytes() const = 0;
  virtual uint32_t banks() const = 0;  // maximum number of outstanding rounds, at least 4

  // Space for this member's chunk of the round, 64-byte aligned. Null while a member that receives
  // from round - banks() has not released it (transports may wait for the other members as well),
  // or while the peers' memory is not known yet.
  virtual std::byte* Reserve(uint64_t round) = 0;

  // Makes the chunk visible. extents[m] is the part that member m reads (the own entry is ignored).
  // Nothing is sent to a member whose extent is empty, and it does not wait for the chunk. If
  // `extents` is empty, every member reads the first `bytes`. The sender may read its chunk until
  // it reserves round + banks().
  virtual void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents = {}) = 0;

  // Like Publish(), for a chunk in the caller's own memory, which must remain unchanged until
  // HasLeft(). Returns false and publishes nothing if the transport can't send it from there.
  virtual bool PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                              std::span<const Extent> extents) {
    (void)round, (void)chunk, (void)bytes, (void)extents;
    return false;
  }
  // Whether the chunk that was published in place in the round has been sent completely.
  virtual bool HasLeft(uint64_t round) const {
    (void)round;
    return true;
  }

  // The chunk that member m published in the round; null until it has arrived. Only the extent for
  // this member may be read.
  virtual const std::byte* Peek(uint64_t round, uint32_t member) = 0;

  // This member will not access chunks of rounds <= round again.
  virtual void Release(uint64_t round) = 0;

  // Null if the transport has none; the same on all members.
  virtual const SharedMemory* shared_memory() const { return nullptr; }

  // This member has abandoned its operations: its callers may reuse their tensors, even if others
  // are still reading them. Data that has not been sent yet is sent from a copy.
  virtual void Withdraw() {}
  // Whether a member has withdrawn. Data that was read from its tensors is then invalid.
  virtual bool HasWithdrawn(uint32_t member) const {
    (void)member;
    return false;
  }

  // The first unused round. An operation takes its rounds from here when it starts, and advances it
  // when it ends.
  uint64_t next_round = 0;

  // Whether the content of chunks that are published from now on is authenticated between hosts.
  // (Their sizes, order and positions always are.) The cost is one pass over the data.
  bool sealed = false;
};

// Seals the chunks that are published during its lifetime.
class SealedChunks {
 public:
  explicit SealedChunks(Exchange& exchange)
      : exchange_(exchange), before_(std::exchange(exchange.sealed, true)) {}
  ~SealedChunks() { exchange_.sealed = before_; }
  SealedChunks(const SealedChunks&) = delete;
  SealedChunks& operator=(const SealedChunks&) = delete;

 private:
  Exchange& exchange_;
  const bool before_;
};

}  // namespace horoscale
