// Each stage of adasum_stages.h is a series of rounds:
//
//   data    to each other member of the cluster: its share of the sender's values, in the type in
//           which Adasum is computed. Products are summed as the data arrives.
//   dots    to all members with parts of the same vectors: the sums of products of each tensor. All
//           add them in one order, so that all use the same weights.
//
// Then, from the last stage to the first:
//
//   result  to the cluster: the sender's share of the result, in the tensors' type. One member
//           computes each element, and the others copy it.
//
// Values are kept in the caller's output if it has the type in which Adasum is computed, and
// otherwise in the operation's own memory. Values received from the pair's other member are kept
// until the weights are known.
#include "collectives/adasum_allreduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "collectives/adasum.h"
#include "collectives/adasum_stages.h"
#include "collectives/element_stream.h"
#include "collectives/fold.h"
#include "collectives/round_loop.h"
#include "collectives/segment_map.h"

namespace horoscale {
namespace {

using Kind = AdasumStages::Kind;

// Elements combined per step, before other operations get a turn.
constexpr int64_t kStepElements = 64 * 1024;

enum class Phase : uint8_t { kData, kDots, kResult };

struct Place {
  Phase phase;
  size_t stage;
  int64_t index;  // among the rounds of its phase and stage
  bool is_last;
};

// Derived from the arguments, and equal on all members.
class Schedule {
 public:
  Schedule(const Exchange& exchange, const Reduction& reduction,
           const std::vector<Segment>& segments)
      : stages_(exchange.size(), reduction.group),
        chunk_bytes_(static_cast<int64_t>(exchange.chunk_bytes())),
        dtype_bytes_(static_cast<int64_t>(SizeOf(reduction.dtype))),
        type_bytes_(static_cast<int64_t>(SizeOf(AdasumType(reduction.dtype)))) {
    std::vector<ElementRange> ranges;
    for (const Segment& segment : segments) ranges.push_back({0, segment.bytes / dtype_bytes_});
    whole_ = ElementStream(ranges);
    // The first member's shares are the largest.
    std::vector<int64_t> results;
    for (size_t stage = 0; stage < stages_.count(); ++stage) {
      for (ElementRange& range : ranges) range = stages_.Share(stage, range, 0);
      const int64_t elements = ElementStream(ranges).elements();
      Add(Phase::kData, stage, DivideUp(elements, DataElements(stage)));
      if (stages_.kind(stage) != Kind::kAverage) {
        const auto dots = static_cast<int64_t>(segments.size() * sizeof(AdasumDots));
        Add(Phase::kDots, stage, DivideUp(dots, DotsBytes()));
      }
      results.push_back(DivideUp(elements, ResultElements()));
    }
    for (size_t stage = stages_.count(); stage-- > 0;) Add(Phase::kResult, stage, results[stage]);
  }

  const AdasumStages& stages() const { return stages_; }
  const ElementStream& whole() const { return whole_; }
  int64_t rounds() const { return static_cast<int64_t>(places_.size()); }
  const Place& At(int64_t round) const { return places_[static_cast<size_t>(round)]; }

  // Maximum sizes per round: of a share, of dots, of a result.
  int64_t DataElements(size_t stage) const {
    const int64_t peers = int64_t{stages_.ClusterSize(stage)} - 1;
    return chunk_bytes_ / type_bytes_ / peers / kAdasumLanes * kAdasumLanes;
  }
  int64_t DotsBytes() const {
    constexpr auto kEach = static_cast<int64_t>(sizeof(AdasumDots));
    return chunk_bytes_ / kEach * kEach;
  }
  int64_t ResultElements() const {
    return chunk_bytes_ / dtype_bytes_ / kAdasumLanes * kAdasumLanes;
  }

 private:
  void Add(Phase phase, size_t stage, int64_t rounds) {
    for (int64_t i = 0; i < rounds; ++i) places_.push_back({phase, stage, i, i + 1 == rounds});
  }

  AdasumStages stages_;
  int64_t chunk_bytes_;
  int64_t dtype_bytes_;
  int64_t type_bytes_;
  ElementStream whole_;
  std::vector<Place> places_;
};

// A member's role in a stage.
struct Part {
  std::vector<uint32_t> cluster;  // empty: no role
  std::vector<uint32_t> holders;
  std::vector<ElementStream> shares;  // of the cluster's members
  size_t own = 0;                     // index in the cluster
  bool is_first = false;              // its values are its input

  const ElementStream& share() const { return shares[own]; }
};

class AdasumAllreduce : public RoundLoop {
 public:
  AdasumAllreduce(Exchange& exchange, AllreduceArgs args, Schedule schedule)
      : RoundLoop(exchange, Participants(exchange, {}), schedule.rounds()),
        schedule_(std::move(schedule)),
        reduction_(args.reduction),
        type_(AdasumType(reduction_.dtype)),
        dtype_bytes_(static_cast<int64_t>(SizeOf(reduction_.dtype))),
        type_bytes_(static_cast<int64_t>(SizeOf(type_))),
        segments_(std::move(args.segments)),
        lanes_(segments_.size()),
        extents_(size()),
        returned_(schedule_.stages().count()) {
    PlanParts();
    TakeMemory();
  }

 private:
  void PlanParts() {
    const AdasumStages& stages = schedule_.stages();
    std::vector<ElementRange> ranges;
    for (size_t t = 0; t < segments_.size(); ++t) ranges.push_back(schedule_.whole().range(t));
    bool has_begun = false;
    for (size_t stage = 0; stage < stages.count(); ++stage) {
      Part& part = parts_.emplace_back();
      part.cluster = stages.Cluster(stage, self());
      if (part.cluster.empty()) continue;
      part.holders = stages.Holders(stage, self());
      for (uint32_t index = 0; index < part.cluster.size(); ++index) {
        std::vector<ElementRange> share;
        for (const ElementRange& range : ranges) {
          share.push_back(stages.Share(stage, range, index));
        }
        part.shares.emplace_back(std::move(share));
        if (part.cluster[index] == self()) part.own = index;
      }
      for (size_t t = 0; t < ranges.size(); ++t) ranges[t] = part.share().range(t);
      part.is_first = !has_begun;
      if (part.is_first) kept_ = part.share();
      has_begun = true;
    }
  }

  // Allocates the tensors of an absent member, values whose type differs from the tensors' type,
  // and received values.
  void TakeMemory() {
    if (BytesOf(segments_) > 0 && IsAbsent()) {
      absent_memory_.resize(static_cast<size_t>(BytesOf(segments_)));
      std::byte* memory = absent_memory_.data();
      for (Segment& segment : segments_) {
        segment = {memory, memory, segment.bytes};
        memory += segment.bytes;
      }
    }
    if (type_ != reduction_.dtype) values_ = Allocate(kept_.elements());
    int64_t most = 0;
    for (const Part& part : parts_) {
      if (!part.holders.empty()) most = std::max(most, part.share().elements());
    }
    others_ = Allocate(most);
  }

  std::unique_ptr<std::byte[]> Allocate(int64_t elements) const {
    return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(elements * type_bytes_));
  }

  bool IsAbsent() const {
    return std::any_of(segments_.begin(), segments_.end(), [](const Segment& segment) {
      return segment.bytes > 0 && segment.out == nullptr;
    });
  }

  // The address of one of the member's own values.
  std::byte* ValueAt(size_t tensor, int64_t element) {
    if (values_ == nullptr) return segments_[tensor].out + element * type_bytes_;
    const int64_t place = kept_.start(tensor) + element - kept_.range(tensor).first;
    return values_.get() + place * type_bytes_;
  }

  // Copies the prescaled input to the values.
  void Load(const ElementStream::Run& run, std::byte* to) const {
    const Segment& segment = segments_[run.tensor];
    const std::array in = {segment.in + run.first * dtype_bytes_};
    if (values_ == nullptr) {
      if (in[0] == to && reduction_.prescale == 1.0) return;
      Fold({.dtype = type_, .prescale = reduction_.prescale}, to, in, run.count);
      return;
    }
    Fold({.dtype = reduction_.dtype, .result = type_}, to, in, run.count);
    if (reduction_.prescale == 1.0) return;
    const std::array loaded = {static_cast<const std::byte*>(to)};
    Fold({.dtype = type_, .prescale = reduction_.prescale}, to, loaded, run.count);
  }

  // Copies the postscaled values to the result.
  void Store(const ElementStream::Run& run) {
    std::byte* const to = segments_[run.tensor].out + run.first * dtype_bytes_;
    const std::array values = {static_cast<const std::byte*>(ValueAt(run.tensor, run.first))};
    if (values_ == nullptr && reduction_.postscale == 1.0) return;
    Reduction finish = {.dtype = type_, .postscale = reduction_.postscale};
    if (values_ != nullptr) finish.result = reduction_.dtype;
    Fold(finish, to, values, run.count);
  }

  bool Send(int64_t round) override {
    const Place& place = schedule_.At(round);
    const Part& part = parts_[place.stage];
    if (part.cluster.empty()) return true;
    switch (place.phase) {
      case Phase::kData:
        return combined_ == place.stage && SendData(round, place, part);
      case Phase::kDots:
        if (part.holders.empty()) return true;
        return summed_ > place.stage && SendDots(round, place, part);
      default:
        return SendResult(round, place, part);
    }
  }

  // The range of a share's stream that a round carries.
  ElementRange DataOf(const Place& place, const ElementStream& share) const {
    const int64_t most = schedule_.DataElements(place.stage);
    const int64_t first = std::min(place.index * most, share.elements());
    return {first, std::min(most, share.elements() - first)};
  }
  ElementRange ResultOf(const Place& place, const ElementStream& share) const {
    const int64_t most = schedule_.ResultElements();
    const int64_t first = std::min(place.index * most, share.elements());
    return {first, std::min(most, share.elements() - first)};
  }

  // The offset of the piece for one member of a cluster in a chunk of another.
  int64_t OffsetOf(const Place& place, size_t sender, size_t receiver) const {
    const auto slot = static_cast<int64_t>(receiver < sender ? receiver : receiver - 1);
    return slot * schedule_.DataElements(place.stage) * type_bytes_;
  }

  bool SendData(int64_t round, const Place& place, const Part& part) {
    std::byte* bank = nullptr;
    int64_t end = 0;
    ClearExtents();
    for (size_t index = 0; index < part.cluster.size(); ++index) {
      const ElementRange data = DataOf(place, part.shares[index]);
      if (index == part.own || data.count == 0) continue;
      if (bank == nullptr) bank = Reserve(round);
      if (bank == nullptr) return false;
      const int64_t offset = OffsetOf(place, part.own, index);
      part.shares[index].ForEachRun(data.first, data.count, [&](const ElementStream::Run& run) {
        std::byte* const to = bank + offset + (run.place - data.first) * type_bytes_;
        if (part.is_first) {
          Load(run, to);
        } else {
          const auto bytes = static_cast<size_t>(run.count * type_bytes_);
          std::memcpy(to, ValueAt(run.tensor, run.first), bytes);
        }
      });
      end = offset + data.count * type_bytes_;
      SetExtent(part.cluster[index], offset, data.count * type_bytes_);
    }
    if (bank != nullptr) PublishExtents(round, end, extents_);
    return true;
  }

  ByteRange DotsOf(const Place& place) const {
    const auto all = static_cast<int64_t>(own_dots_.size() * sizeof(AdasumDots));
    const int64_t first = place.index * schedule_.DotsBytes();
    return {first, std::min(schedule_.DotsBytes(), all - first)};
  }

  bool SendDots(int64_t round, const Place& place, const Part& part) {
    if (part.holders.size() == 1) return true;
    std::byte* const bank = Reserve(round);
    if (bank == nullptr) return false;
    const ByteRange dots = DotsOf(place);
    const auto* const all = reinterpret_cast<const std::byte*>(own_dots_.data());
    std::memcpy(bank, all + dots.first, static_cast<size_t>(dots.bytes));
    ClearExtents();
    for (const uint32_t holder : part.holders) {
      if (holder != self()) SetExtent(holder, 0, dots.bytes);
    }
    const SealedChunks sealed = Sealed();
    PublishExtents(round, dots.bytes, extents_);
    return true;
  }

  bool SendResult(int64_t round, const Place& place, const Part& part) {
    const ElementRange result = ResultOf(place, part.share());
    if (result.count == 0) return true;
    if (combined_ < parts_.size() || returned_ > place.stage + 1) return false;
    std::byte* const bank = Reserve(round);
    if (bank == nullptr) return false;
    part.share().ForEachRun(result.first, result.count, [&](const ElementStream::Run& run) {
      std::memcpy(bank + (run.place - result.first) * dtype_bytes_, OutAt(run),
                  static_cast<size_t>(run.count * dtype_bytes_));
    });
    ClearExtents();
    for (const uint32_t member : part.cluster) {
      if (member != self()) SetExtent(member, 0, result.count * dtype_bytes_);
    }
    PublishExtents(round, result.count * dtype_bytes_, extents_);
    return true;
  }

  Progress Receive(int64_t round) override {
    const Place& place = schedule_.At(round);
    const Part& part = parts_[place.stage];
    Progress progress = Progress::kDone;
    if (!part.cluster.empty()) {
      progress = place.phase == Phase::kData   ? ReceiveData(round, place, part)
                 : place.phase == Phase::kDots ? ReceiveDots(round, place, part)
                                               : ReceiveResult(round, place, part);
    }
    if (progress == Progress::kDone && place.is_last) EndPhase(place, part);
    return progress;
  }

  void EndPhase(const Place& place, const Part& part) {
    if (place.phase == Phase::kResult) returned_ = place.stage;
    if (place.phase == Phase::kData) {
      own_dots_.clear();
      if (!part.holders.empty()) {
        for (const AdasumLanes& lanes : lanes_) own_dots_.push_back(SumLanes(lanes));
      }
      lanes_.assign(segments_.size(), {});
      dots_.assign(segments_.size(), {});
      summed_ = place.stage + 1;
    }
    const bool averages = schedule_.stages().kind(place.stage) == Kind::kAverage;
    if (place.phase == (averages ? Phase::kData : Phase::kDots)) combined_ = place.stage + 1;
  }

  Progress ReceiveData(int64_t round, const Place& place, const Part& part) {
    const ElementRange data = DataOf(place, part.share());
    if (data.count == 0) return Progress::kDone;
    chunks_.assign(part.cluster.size(), nullptr);
    for (size_t index = 0; index < part.cluster.size(); ++index) {
      if (index == part.own) continue;
      chunks_[index] = Peek(round, part.cluster[index]);
      if (chunks_[index] == nullptr) return Progress::kIdle;
      chunks_[index] += OffsetOf(place, index, part.own);
    }
    const bool averages = schedule_.stages().kind(place.stage) == Kind::kAverage;
    part.share().ForEachRun(data.first, data.count, [&](const ElementStream::Run& run) {
      if (part.is_first) Load(run, ValueAt(run.tensor, run.first));
      const int64_t offset = (run.place - data.first) * type_bytes_;
      averages ? Average(run, part, offset) : AddProductsOf(run, part, offset);
      if (averages && IsLast(place)) Store(run);
    });
    return Progress::kDone;
  }

  bool IsLast(const Place& place) const { return place.stage + 1 == parts_.size(); }

  void Average(const ElementStream::Run& run, const Part& part, int64_t offset) {
    std::byte* const own = ValueAt(run.tensor, run.first);
    sources_.clear();
    for (const std::byte* chunk : chunks_) {
      sources_.push_back(chunk == nullptr ? own : chunk + offset);
    }
    const auto divisor = static_cast<int64_t>(part.cluster.size());
    Fold({.dtype = type_, .op = ReduceOp::kAverage, .divisor = divisor}, own, sources_, run.count);
  }

  // Stores the received values, and sums the products.
  void AddProductsOf(const ElementStream::Run& run, const Part& part, int64_t offset) {
    const std::byte* const own = ValueAt(run.tensor, run.first);
    const std::byte* const other = chunks_[1 - part.own] + offset;
    std::memcpy(OtherAt(run), other, static_cast<size_t>(run.count * type_bytes_));
    AddProducts(type_, part.own == 0 ? own : other, part.own == 0 ? other : own, run.count,
                lanes_[run.tensor]);
  }

  Progress ReceiveDots(int64_t round, const Place& place, const Part& part) {
    if (part.holders.empty()) return Progress::kDone;
    if (weighted_ == 0) {
      chunks_.clear();
      for (const uint32_t holder : part.holders) {
        const auto* const own = reinterpret_cast<const std::byte*>(own_dots_.data());
        chunks_.push_back(holder == self() ? own + DotsOf(place).first : Peek(round, holder));
        if (chunks_.back() == nullptr) return Progress::kIdle;
      }
      SumDots(place);
      if (!place.is_last) return Progress::kDone;
    }
    return AddSomeWeighted(place, part);
  }

  // In the order of the members, so that all compute the same sums.
  void SumDots(const Place& place) {
    constexpr auto kEach = static_cast<int64_t>(sizeof(AdasumDots));
    const ByteRange range = DotsOf(place);
    for (int64_t place_of = 0; place_of < range.bytes; place_of += kEach) {
      AdasumDots& sum = dots_[static_cast<size_t>((range.first + place_of) / kEach)];
      for (const std::byte* chunk : chunks_) {
        AdasumDots one;
        std::memcpy(&one, chunk + place_of, sizeof(one));
        sum.Add(one);
      }
    }
  }

  Progress AddSomeWeighted(const Place& place, const Part& part) {
    const ElementStream& share = part.share();
    share.ForEachRun(weighted_, kStepElements, [&](const ElementStream::Run& run) {
      AdasumWeights weights = WeightsOf(dots_[run.tensor]);
      if (part.own == 1) std::swap(weights.a, weights.b);
      AddWeighted(type_, ValueAt(run.tensor, run.first), OtherAt(run), run.count, weights);
      if (IsLast(place)) Store(run);
    });
    weighted_ += kStepElements;
    if (weighted_ < share.elements()) return Progress::kAdvanced;
    weighted_ = 0;
    return Progress::kDone;
  }

  Progress ReceiveResult(int64_t round, const Place& place, const Part& part) {
    for (; next_ < part.cluster.size(); ++next_) {
      const ElementStream& share = part.shares[next_];
      const ElementRange result = ResultOf(place, share);
      if (next_ == part.own || result.count == 0) continue;
      const std::byte* const chunk = Peek(round, part.cluster[next_]);
      if (chunk == nullptr) return Progress::kIdle;
      share.ForEachRun(result.first, result.count, [&](const ElementStream::Run& run) {
        std::memcpy(OutAt(run), chunk + (run.place - result.first) * dtype_bytes_,
                    static_cast<size_t>(run.count * dtype_bytes_));
      });
    }
    next_ = 0;
    return Progress::kDone;
  }

  std::byte* OutAt(const ElementStream::Run& run) const {
    return segments_[run.tensor].out + run.first * dtype_bytes_;
  }
  // Where the values received from the pair's other member are kept.
  std::byte* OtherAt(const ElementStream::Run& run) const {
    return others_.get() + run.place * type_bytes_;
  }

  void ClearExtents() { std::fill(extents_.begin(), extents_.end(), Exchange::Extent{}); }
  void SetExtent(uint32_t member, int64_t offset, int64_t bytes) {
    extents_[member] = {static_cast<size_t>(offset), static_cast<size_t>(bytes)};
  }

  const Schedule schedule_;
  const Reduction reduction_;
  const DataType type_;  // in which Adasum is computed
  const int64_t dtype_bytes_;
  const int64_t type_bytes_;
  std::vector<Segment> segments_;
  std::vector<Part> parts_;  // by stage
  ElementStream kept_;       // of the first part, which contains all others
  std::vector<std::byte> absent_memory_;
  std::unique_ptr<std::byte[]> values_;  // of kept_; null: they are in the output
  std::unique_ptr<std::byte[]> others_;
  std::vector<AdasumLanes> lanes_;    // by tensor, as the next
  std::vector<AdasumDots> own_dots_;  // of this member's parts
  std::vector<AdasumDots> dots_;      // of the vectors
  std::vector<Exchange::Extent> extents_;
  std::vector<const std::byte*> chunks_;  // of the members of a cluster, or of the holders
  std::vector<const std::byte*> sources_;
  int64_t weighted_ = 0;  // of the share in the stage whose weights are known
  size_t next_ = 0;       // member of the cluster, in a round of results
  size_t summed_ = 0;     // stages whose data has arrived
  size_t combined_ = 0;   // completed stages
  size_t returned_ = 0;   // the last stage with all results on this member
};

}  // namespace

std::unique_ptr<Collective> MakeAdasumAllreduce(Exchange& exchange, AllreduceArgs args) {
  if (exchange.size() == 1 || BytesOf(args.segments) == 0) {
    args.reduction.op = ReduceOp::kSum;
    return MakeAllreduce(exchange, std::move(args));
  }
  Schedule schedule(exchange, args.reduction, args.segments);
  return std::make_unique<AdasumAllreduce>(exchange, std::move(args), std::move(schedule));
}

}  // namespace horoscale
