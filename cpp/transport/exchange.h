// Exchange: the data plane of one process set, as rounds of chunks.
//
// In every round each member may publish one chunk and read the chunks of the others. All members
// execute the same operations in the same order, so round numbers agree without being sent. A chunk
// lives in memory of the transport: the sender writes into Reserve()d space, the readers read from
// where Peek() points; over shared memory the bytes are copied once by the sender and never again.
//
//     round        r            r+1          r+2       …
//     bank     r % banks    (r+1) % banks              a bank is written again only after all
//                                                      members have released its last round
//
// Rules. Nothing blocks: a call that would wait returns null, and the caller yields and asks again.
// A member publishes rounds in increasing order and may leave rounds out. It releases rounds in
// increasing order and leaves none out for ever: Release(r) covers every round up to r. Only the
// engine's owner calls an Exchange; it needs no lock. When a member is lost, nothing more comes:
// the runtime notices and drops the operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace horoscale {

// Memory that the members of an exchange can reach directly, where their transport has such. A
// member's address in the terms of all is an offset; any member turns it into an address of its
// own.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // -1 if [memory, memory + bytes) isn't (all) in this member's shared memory.
  virtual int64_t OffsetOf(const std::byte* memory, size_t bytes) const = 0;
  // Null if the member has no such memory.
  virtual std::byte* AddressOf(uint32_t member, int64_t offset, size_t bytes) const = 0;

  // Whether this member can read the memory of all others that they don't share: the system may let
  // processes of a user do that.
  virtual bool ReadsPrivate() const { return false; }
  // Whether such memory of this member is of a kind that can be read so. Memory of devices is not,
  // nor what their drivers have pinned.
  virtual bool CanBeRead(const std::byte* memory, size_t bytes) const {
    (void)memory, (void)bytes;
    return false;
  }
  // Copies `bytes` from an address of another member's. An error that names its rank where that
  // can't be done, as when its process has ended.
  virtual Status ReadPrivate(uint32_t member, uint64_t address, std::byte* to, size_t bytes) const {
    (void)member, (void)address, (void)to, (void)bytes;
    return Status::Internal("this exchange can't read memory of other ranks");
  }
};

class Exchange {
 public:
  // The bytes of a chunk that one reader will look at. A transport that has to move bytes moves
  // only these.
  struct Extent {
    size_t offset = 0;
    size_t bytes = 0;
  };

  virtual ~Exchange() = default;

  virtual uint32_t size() const = 0;  // members
  virtual uint32_t self() const = 0;  // own index
  // The host of each member, numbered 0, 1, … in the order of the hosts' lowest members; empty
  // where all members are on one host. The same on all members. Between hosts bytes are dear: there
  // algorithms send each of them once.
  virtual std::span<const uint32_t> hosts() const { return {}; }
  // Capacity of a chunk: a multiple of 4096. There may be members for which it has no byte.
  virtual size_t chunk_bytes() const = 0;
  virtual uint32_t banks() const = 0;  // rounds that can be outstanding, at least 4

  // Space for this member's chunk of the round, 64-byte aligned; null while a member to which
  // something of round - banks() was published has not released it yet (transports may wait for
  // the others as well), or the peers' memory is not known yet.
  virtual std::byte* Reserve(uint64_t round) = 0;

  // Makes the chunk visible. extents[m] is what member m reads of it (its own entry is ignored):
  // nothing is sent to a member whose extent has no bytes, and it doesn't look for the chunk. An
  // empty span means that every member reads the first `bytes` of it. The sender may read its chunk
  // until it reserves round + banks().
  virtual void Publish(uint64_t round, size_t bytes, std::span<const Extent> extents = {}) = 0;

  // Publish() of a chunk that is not in the reserved space but in the caller's own memory, where it
  // stays as it is until HasLeft(). False, and nothing is published, if the transport can't send it
  // from there.
  virtual bool PublishInPlace(uint64_t round, const std::byte* chunk, size_t bytes,
                              std::span<const Extent> extents) {
    (void)round, (void)chunk, (void)bytes, (void)extents;
    return false;
  }
  // Whether nothing of what was published in place in the round is still to be sent from there.
  virtual bool HasLeft(uint64_t round) const {
    (void)round;
    return true;
  }

  // The chunk that member m published in the round; null until it is there. Only the extent that m
  // gave for this member may be read.
  virtual const std::byte* Peek(uint64_t round, uint32_t member) = 0;

  // This member will not look at chunks of rounds <= round again.
  virtual void Release(uint64_t round) = 0;

  // Null where the transport has none; the same on all members.
  virtual const SharedMemory* shared_memory() const { return nullptr; }

  // This member has given up what is under way: its callers may use their tensors again, whoever
  // may still be reading them. What has not left them yet is sent from a copy.
  virtual void Withdraw() {}
  // Whether a member had done so by now: what was read from its tensors before may be anything.
  virtual bool HasWithdrawn(uint32_t member) const {
    (void)member;
    return false;
  }

  // The first round that no operation has used yet. An operation takes its rounds from here when it
  // starts and moves it when it ends.
  uint64_t next_round = 0;

  // Whether chunks that are published from now on can't be changed on their way between hosts
  // without notice. (Their sizes, order and places never can.) It costs the time to read them.
  bool sealed = false;
};

// Has the chunks sealed that are published while it lives.
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
