#include "collectives/direct_allreduce.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/fold.h"
#include "collectives/round_loop.h"
#include "collectives/segment_map.h"
#include "platform/streaming_copy.h"

namespace horoscale {
namespace {

// For smaller tensors the additional round costs more than the copies that it may save.
constexpr int64_t kDirectBytes = 256 * 1024;
// Fold size: the result is still in the cache when it is copied to the others.
constexpr int64_t kBlockBytes = 32 * 1024;
// Bytes per step, before other operations get a turn.
constexpr int64_t kStepBytes = 256 * 1024;

// A member's announcement of one tensor. The first entry of the list holds the number of the
// others: members with different lists can't use the direct form.
struct SegmentPlace {
  int64_t offset;
  int64_t bytes;
};

// One member's addresses of the segments.
using Addresses = std::vector<std::byte*>;

ByteRange OwnSlice(const Exchange& exchange, std::span<const Segment> segments) {
  return SliceOf(BytesOf(segments), exchange.size(), exchange.self());
}

class DirectAllreduce : public Collective {
 public:
  // addresses[m][s]: segment s of member m.
  DirectAllreduce(Exchange& exchange, AllreduceArgs args, std::vector<Addresses> addresses)
      : exchange_(exchange),
        reduction_(args.reduction),
        element_bytes_(static_cast<int64_t>(SizeOf(args.reduction.dtype))),
        segments_(std::move(args.segments)),
        addresses_(std::move(addresses)),
        sources_(exchange.size()),
        done_round_(exchange.next_round++) {
    for (uint32_t m = 0; m < exchange.size(); ++m) {
      const bool gets_result = !args.root || m == *args.root;
      if (gets_result && m != exchange.self()) receivers_.push_back(m);
    }
    if (args.root && *args.root != exchange.self()) {
      block_ = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
    }
    const ByteRange slice = OwnSlice(exchange, segments_);
    left_ = slice.bytes;
    into_segment_ = slice.first;
    SkipFinishedSegments();
  }

  Result<Progress> Step() override {
    if (is_withdrawn_) return Progress::kIdle;
    if (left_ > 0) {
      for (int64_t stepped = 0; left_ > 0 && stepped < kStepBytes && !is_withdrawn_;) {
        stepped += FoldBlock();
      }
      return is_withdrawn_ ? Progress::kIdle : Progress::kAdvanced;
    }
    if (!published_) {
      if (exchange_.Reserve(done_round_) == nullptr) return Progress::kIdle;
      exchange_.Publish(done_round_, 0);
      published_ = true;
    }
    for (; next_member_ < exchange_.size(); ++next_member_) {
      if (next_member_ == exchange_.self()) continue;
      if (exchange_.Peek(done_round_, next_member_) == nullptr) return Progress::kIdle;
    }
    exchange_.Release(done_round_);
    return Progress::kDone;
  }

 private:
  void SkipFinishedSegments() {
    while (segment_ < segments_.size() && into_segment_ >= segments_[segment_].bytes) {
      into_segment_ -= segments_[segment_].bytes;
      ++segment_;
    }
  }

  int64_t FoldBlock() {
    const int64_t bytes = std::min({kBlockBytes, left_, segments_[segment_].bytes - into_segment_});
    const auto length = static_cast<size_t>(bytes);
    for (uint32_t m = 0; m < exchange_.size(); ++m) {
      sources_[m] = addresses_[m][segment_] + into_segment_;
    }
    // Only the other members' slices of this member's tensors were copied to where its result goes.
    sources_[exchange_.self()] = segments_[segment_].in + into_segment_;
    std::byte* const own =
        block_ != nullptr ? block_.get() : addresses_[exchange_.self()][segment_] + into_segment_;
    Fold(reduction_, own, sources_, bytes / element_bytes_);
    for (uint32_t m = 0; m < exchange_.size(); ++m) {
      // That member's operation has failed, and this one will too, as soon as this member learns
      // the reason.
      is_withdrawn_ |= exchange_.HasWithdrawn(m);
    }
    if (is_withdrawn_) return bytes;
    for (const uint32_t m : receivers_) {
      std::memcpy(addresses_[m][segment_] + into_segment_, own, length);
    }
    left_ -= bytes;
    into_segment_ += bytes;
    SkipFinishedSegments();
    return bytes;
  }

  Exchange& exchange_;
  const Reduction reduction_;
  const int64_t element_bytes_;
  const std::vector<Segment> segments_;
  const std::vector<Addresses> addresses_;
  std::vector<const std::byte*> sources_;
  const uint64_t done_round_;
  std::vector<uint32_t> receivers_;     // members that receive this member's results
  std::unique_ptr<std::byte[]> block_;  // for a result that goes to the root; null: it stays here
  size_t segment_ = 0;                  // where the next block begins
  int64_t into_segment_ = 0;
  int64_t left_ = 0;  // of this member's slice
  bool published_ = false;
  bool is_withdrawn_ = false;  // a withdrawn tensor may have changed
  uint32_t next_member_ = 0;
};

// Runs the first round, then the algorithm that the answers allow.
class AskingAllreduce : public Collective {
 public:
  AskingAllreduce(Exchange& exchange, AllreduceArgs args, AllreduceMaker otherwise)
      : exchange_(exchange),
        args_(std::move(args)),
        otherwise_(otherwise),
        round_(exchange.next_round++),
        addresses_(exchange.size()),
        tensors_(args_.segments),
        own_slice_(OwnSlice(exchange, args_.segments)) {
    FindPlaces();
    if (!reachable_) copied_ = tensors_.bytes();
  }

  Result<Progress> Step() override {
    if (chosen_) return chosen_->Step();
    if (copied_ < tensors_.bytes()) {
      CopySome();
      return Progress::kAdvanced;
    }
    if (!published_ && !Publish()) return Progress::kIdle;
    for (; next_member_ < exchange_.size(); ++next_member_) {
      if (next_member_ == exchange_.self()) continue;
      const std::byte* const answer = exchange_.Peek(round_, next_member_);
      if (answer == nullptr) return Progress::kIdle;
      reachable_ = Read(answer, next_member_) && reachable_;
    }
    exchange_.Release(round_);
    chosen_ = reachable_ ? std::make_unique<DirectAllreduce>(exchange_, std::move(args_),
                                                             std::move(addresses_))
                         : otherwise_(exchange_, std::move(args_));
    return Progress::kAdvanced;
  }

 private:
  size_t AnswerBytes() const { return (args_.segments.size() + 1) * sizeof(SegmentPlace); }
  int64_t NumSegments() const { return static_cast<int64_t>(args_.segments.size()); }

  void FindPlaces() {
    places_.push_back({NumSegments(), 0});
    for (const Segment& segment : args_.segments) {
      // A member without a result only has its input read.
      std::byte* const place =
          segment.out != nullptr ? segment.out : const_cast<std::byte*>(segment.in);
      const int64_t offset =
          exchange_.shared_memory()->OffsetOf(place, static_cast<size_t>(segment.bytes));
      reachable_ = reachable_ && offset >= 0;
      addresses_[exchange_.self()].push_back(place);
      places_.push_back({offset, segment.bytes});
    }
  }

  // Copies the other members' slices of tensors in unreachable memory to where they can be read.
  void CopySome() {
    const int64_t own_end = own_slice_.first + own_slice_.bytes;
    if (copied_ >= own_slice_.first && copied_ < own_end) copied_ = own_end;
    const int64_t end = copied_ < own_slice_.first ? own_slice_.first : tensors_.bytes();
    const int64_t bytes = std::min(kStepBytes, end - copied_);
    tensors_.ForEachRun(copied_, bytes, [](const Segment& run, int64_t) {
      if (run.in == run.out || run.out == nullptr) return;
      StreamingCopy(run.out, run.in, static_cast<size_t>(run.bytes));
    });
    copied_ += bytes;
  }

  bool Publish() {
    std::byte* const bank = exchange_.Reserve(round_);
    if (bank == nullptr) return false;
    std::memcpy(bank, places_.data(), AnswerBytes());
    exchange_.Publish(round_, AnswerBytes());
    return published_ = true;
  }

  bool Read(const std::byte* answer, uint32_t member) {
    SegmentPlace place;
    std::memcpy(&place, answer, sizeof(place));
    if (place.offset != NumSegments()) return false;
    for (const Segment& segment : args_.segments) {
      answer += sizeof(place);
      std::memcpy(&place, answer, sizeof(place));
      if (place.offset < 0 || place.bytes != segment.bytes) return false;
      std::byte* const address = exchange_.shared_memory()->AddressOf(
          member, place.offset, static_cast<size_t>(place.bytes));
      if (address == nullptr) return false;
      addresses_[member].push_back(address);
    }
    return true;
  }

  Exchange& exchange_;
  AllreduceArgs args_;
  const AllreduceMaker otherwise_;
  const uint64_t round_;
  std::vector<Addresses> addresses_;
  const SegmentMap tensors_;
  const ByteRange own_slice_;
  std::vector<SegmentPlace> places_;
  int64_t copied_ = 0;  // or need not be copied
  bool published_ = false;
  bool reachable_ = true;
  uint32_t next_member_ = 0;
  std::unique_ptr<Collective> chosen_;
};

}  // namespace

bool MayBeDirect(const Exchange& exchange, const AllreduceArgs& args, int64_t bytes) {
  return exchange.shared_memory() != nullptr && bytes >= kDirectBytes && args.absent.empty() &&
         exchange.size() > 1 &&
         (args.segments.size() + 1) * sizeof(SegmentPlace) <= exchange.chunk_bytes();
}

std::unique_ptr<Collective> MakeDirectAllreduce(Exchange& exchange, AllreduceArgs args,
                                                AllreduceMaker otherwise) {
  return std::make_unique<AskingAllreduce>(exchange, std::move(args), otherwise);
}

}  // namespace horoscale
