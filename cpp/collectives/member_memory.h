// Members' memory as they tell each other of it: what collectives share that read it directly.
//
// A member says where its input is; the others read it there, if it is in memory that they share,
// or if the system lets processes of a user read each other's. Who has been read from is told when
// that is over, because its caller may change the input then.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collectives/collective.h"

namespace horoscale {

// Where something of a member is; the bytes are those of the chunk that says it.
struct Place {
  int64_t offset = -1;   // in its shared memory; -1: elsewhere
  uint64_t address = 0;  // in its own terms; 0: not to be read
  bool is_shared() const { return offset >= 0; }
  bool is_readable() const { return is_shared() || address != 0; }
};
static_assert(sizeof(Place) == 16);

struct Input {
  const std::byte* memory = nullptr;
  int64_t bytes = 0;
};
// Where this member's inputs are. Private memory is to be read if it is large, though not in many
// small pieces.
std::vector<Place> PlacesOf(const Exchange& exchange, const std::vector<Input>& inputs);

// A place that says only whether this member can read private memory: by an address that isn't 0.
Place ReaderPlace(const Exchange& exchange);

// Whether members may read each other's memory at all.
bool HasReachableMemory(const Exchange& exchange);
// From how many bytes on that pays: it takes a round or two more.
int64_t LeastDirectBytes(const Exchange& exchange);
// Up to how much private memory of a member goes through banks where it could be read: both sides
// copy at the same time there, which is faster as long as the caches hold what they copy.
int64_t MostCopiedBytes(const Exchange& exchange);

// Some bytes of a member that go to memory of this one.
struct Move {
  uint32_t from = 0;
  const std::byte* source = nullptr;  // as this process sees it; null: at `address` in from's
  uint64_t address = 0;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};
// The bytes from `skip` on at a place of a member. kProtocol if there can be no such place.
Result<Move> MoveFrom(const Exchange& exchange, uint32_t member, const Place& place, int64_t skip,
                      std::byte* to, int64_t bytes);

// The round in which a member of several tells all others where its tensors are.
class PlaceRound {
 public:
  // The places fit into a chunk.
  PlaceRound(Exchange& exchange, std::vector<Place> own);

  // Tells, once; false if that has to wait.
  bool Tell();
  // What a member of whom `count` places are known has told; null until then.
  const Place* Heard(uint32_t member);
  // Nothing more is asked.
  void Release() { exchange_.Release(round_); }

 private:
  Exchange& exchange_;
  const std::vector<Place> own_;
  const uint64_t round_;
  bool told_ = false;
};

// The round in which members tell that they have read what they need of others.
class DoneRound {
 public:
  // `readers` read from this member.
  DoneRound(Exchange& exchange, std::vector<uint32_t> readers)
      : exchange_(exchange), readers_(std::move(readers)), round_(exchange.next_round++) {}

  // Tells those that this member has read from; false if that has to wait.
  bool Tell();
  // Whether all readers have told it. The round is over then.
  bool Heard();

 private:
  Exchange& exchange_;
  const std::vector<uint32_t> readers_;
  const uint64_t round_;
  bool told_ = false;
  size_t heard_ = 0;
};

}  // namespace horoscale
