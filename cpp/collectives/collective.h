// The contract of a collective: an explicit state machine over an Exchange.
//
// Step() advances as far as one chunk and returns, so that one thread can interleave the
// collectives of all process sets and notice faults between any two steps. It never blocks. All
// members of the exchange create the same collective with agreeing arguments; rounds are taken from
// exchange.next_round in the constructor, which sets it to the first round after the operation as
// soon as that is known, at the latest with the step that returns kDone.
//
// Results are a pure function of the members' inputs (canonical order of the sum:
// docs/algorithms.md): bitwise equal on all members and independent of chunk size, timing and
// fusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/encoding.h"
#include "base/status.h"
#include "base/types.h"
#include "transport/exchange.h"

namespace horoscale {

enum class Progress {
  kIdle,      // waits for another member
  kAdvanced,  // something moved; call again
  kDone,
};

class Collective {
 public:
  virtual ~Collective() = default;
  // A failed status means that this member can't go on (no memory for a result): the rounds no
  // longer agree, and the set is lost.
  virtual Result<Progress> Step() = 0;
};

// How values are combined. `divisor` is what Average divides by.
struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;
  // What the result, once rounded to dtype, is converted to; none: it stays. Between a 16-bit type
  // and float32 or float64.
  std::optional<DataType> result = {};
  // Adasum: so many consecutive members average their values first. Divides their number.
  uint32_t group = 1;
};

// A run of elements of a tensor of the caller. A fused operation is a list of these: they are
// gathered straight into the chunk and scattered straight out of it; there is no fusion buffer in
// between. in may equal out (in place) but may not overlap it otherwise.
struct Segment {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t bytes = 0;
};

// Memory that a collective allocates for a result of unknown size. Backends may have another
// function than std::free() to give it back.
struct FreeDeleter {
  void (*free)(void*) = std::free;
  void operator()(std::byte* p) const { free(p); }
};
using OwnedBytes = std::unique_ptr<std::byte, FreeDeleter>;

struct TensorResiduals;

// Which part of its tensor a segment is, for lossy encodings.
struct TensorPart {
  int64_t begin = 0;                     // elements
  int64_t elements = 0;                  // of the tensor
  uint32_t home = 0;                     // see UnitPlaces
  TensorResiduals* residuals = nullptr;  // null: what is lost is lost
};

// What was encoded, for the metrics.
struct EncodingTotals {
  uint64_t calls = 0;
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
  double seconds = 0;  // that encoding and decoding took
  double squares = 0;  // of a sample of the values that residuals are kept of
  double error_squares = 0;
};

struct AllreduceArgs {
  Reduction reduction;
  std::vector<Segment> segments;  // bytes set also where this member is absent (in, out null)
  std::vector<uint32_t> absent;   // joined members: they contribute nothing and own no slice
  Encoding encoding = {};         // of sums, between hosts
  // Of a reduce: the member that alone has the result, and an `out`; it is not absent.
  std::optional<uint32_t> root = {};
  std::vector<TensorPart> parts = {};  // one for each segment, or none
  EncodingTotals* totals = nullptr;    // outlives the collective
};

// Rows that belong to one member.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

struct ReducescatterItem {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  // room for the own rows
  int64_t rows = 0;          // of the input
  int64_t row_bytes = 0;
};
struct ReducescatterArgs {
  Reduction reduction;
  std::vector<ReducescatterItem> items;
  Encoding encoding = {};                // as for allreduce
  std::vector<int64_t> splits = {};      // rows of each item for each position; empty: evenly
  std::vector<uint32_t> positions = {};  // by member, where the members' rows have another order
  std::vector<TensorPart> parts = {};    // one for each item, or none
  EncodingTotals* totals = nullptr;      // outlives the collective

  // The member's rows of an item.
  RowRange RowsFor(const ReducescatterItem& item, uint32_t size, uint32_t member) const;
};

struct BroadcastArgs {
  uint32_t root = 0;              // member index
  std::vector<Segment> segments;  // root: in (and out, which gets a copy unless it equals in)
  std::vector<uint32_t> absent;   // never the root
};

// The caller's memory for a result whose size is known only when the others' rows are.
struct ResultRoom {
  std::byte* out = nullptr;  // null: the collective allocates the result
  int64_t rows = 0;          // a result of more or fewer is allocated as well
};

struct AllgatherItem {
  const std::byte* in = nullptr;
  int64_t rows = 0;       // own; may differ between members
  int64_t row_bytes = 0;  // the same on all members
  ResultRoom room = {};
};
struct AllgatherResult {
  OwnedBytes data;            // rows of member 0, 1, 2, …; null if there are none, or they are
                              // where the caller has room for them
  std::vector<int64_t> rows;  // by member
};
struct AllgatherArgs {
  std::vector<AllgatherItem> items;
  std::vector<AllgatherResult>* results = nullptr;  // outlives the collective; resized by it
};

struct GatherArgs {
  uint32_t root = 0;  // member index
  std::vector<AllgatherItem> items;
  // As for allgather at the root; elsewhere no rows.
  std::vector<AllgatherResult>* results = nullptr;
};

struct ScatterArgs {
  uint32_t root = 0;  // member index
  int64_t row_bytes = 0;
  const std::byte* in = nullptr;      // at the root
  std::vector<int64_t> splits;        // at the root: rows for each member
  AllgatherResult* result = nullptr;  // rows: received from each member
};

struct AlltoallArgs {
  const std::byte* in = nullptr;
  int64_t row_bytes = 0;
  std::vector<int64_t> splits;        // rows for each member
  AllgatherResult* result = nullptr;  // rows: received from each member
  ResultRoom room = {};
};

std::unique_ptr<Collective> MakeAllreduce(Exchange& exchange, AllreduceArgs args);
std::unique_ptr<Collective> MakeReducescatter(Exchange& exchange, ReducescatterArgs args);
std::unique_ptr<Collective> MakeBroadcast(Exchange& exchange, BroadcastArgs args);
std::unique_ptr<Collective> MakeAllgather(Exchange& exchange, AllgatherArgs args);
std::unique_ptr<Collective> MakeReduce(Exchange& exchange, AllreduceArgs args);  // to its root
std::unique_ptr<Collective> MakeGather(Exchange& exchange, GatherArgs args);
std::unique_ptr<Collective> MakeScatter(Exchange& exchange, ScatterArgs args);
std::unique_ptr<Collective> MakeAlltoall(Exchange& exchange, AlltoallArgs args);

// First row and number of rows of member `index` when `rows` are split over `size` members: the
// lower ones take one more where it doesn't divide.
RowRange RowsOf(int64_t rows, uint32_t size, uint32_t index);
// The same where `splits` may say how many rows each member gets; empty: as above.
RowRange RowsOf(std::span<const int64_t> splits, int64_t rows, uint32_t size, uint32_t index);

}  // namespace horoscale
