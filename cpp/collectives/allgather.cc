// Allgather: members first tell each other their numbers of rows, then publish their rows chunk by
// chunk; everybody copies everything to its place in the results.
//
// What a member contributes to all items is one sequence of bytes, its stream.
#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/round_loop.h"
#include "collectives/segment_map.h"
#include "collectives/unequal.h"

namespace horoscale {
namespace {

class Allgather : public RoundLoop {
 public:
  Allgather(Exchange& exchange, AllgatherArgs args)
      : RoundLoop(exchange, Participants(exchange, {}), CountRounds(exchange, args.items.size())),
        items_(std::move(args.items)),
        results_(args.results),
        count_rounds_(CountRounds(exchange, items_.size())),
        counts_(size() * items_.size()) {
    for (size_t i = 0; i < items_.size(); ++i) CountsOf(self())[i] = items_[i].rows;
  }

 private:
  static int64_t CountRounds(const Exchange& exchange, size_t items) {
    if (exchange.size() == 1) return 0;
    return DivideUp(static_cast<int64_t>(items * sizeof(int64_t)),
                    static_cast<int64_t>(exchange.chunk_bytes()));
  }
  int64_t* CountsOf(uint32_t member) { return counts_.data() + member * items_.size(); }

  // The part of some bytes that chunk number `index` of them carries.
  struct Part {
    int64_t first;
    int64_t bytes;
  };
  Part PartOf(int64_t total, int64_t index) const {
    const int64_t first = index * chunk_bytes();
    return {first, std::clamp(total - first, int64_t{0}, chunk_bytes())};
  }
  Part CountsPart(int64_t round) const {
    return PartOf(static_cast<int64_t>(items_.size() * sizeof(int64_t)), round);
  }
  Part DataPart(int64_t round, uint32_t member) const {
    return PartOf(streams_[member].bytes(), round - count_rounds_);
  }

  bool Send(int64_t round) override {
    if (round >= count_rounds_ && DataPart(round, self()).bytes == 0) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    if (round < count_rounds_) {
      const Part part = CountsPart(round);
      const auto* counts = reinterpret_cast<const std::byte*>(CountsOf(self()));
      std::memcpy(bank, counts + part.first, static_cast<size_t>(part.bytes));
      PublishToPeers(round, part.bytes);
    } else {
      const Part part = DataPart(round, self());
      streams_[self()].Gather(bank, part.first, part.bytes);
      PublishToPeers(round, part.bytes);
    }
    return true;
  }

  Progress Receive(int64_t round) override {
    if (round < count_rounds_) {
      return ReceiveFromEach(
          round, [](uint32_t) { return true; },
          [&](uint32_t peer, const std::byte* chunk) {
            const Part part = CountsPart(round);
            auto* counts = reinterpret_cast<std::byte*>(CountsOf(peer));
            std::memcpy(counts + part.first, chunk, static_cast<size_t>(part.bytes));
          });
    }
    return ReceiveFromEach(
        round, [&](uint32_t peer) { return DataPart(round, peer).bytes > 0; },
        [&](uint32_t peer, const std::byte* chunk) {
          const Part part = DataPart(round, peer);
          streams_[peer].Scatter(chunk, part.first, part.bytes);
        });
  }

  // The own part of the results.
  bool LocalWork() override {
    if (streams_.empty()) return false;
    const Part part = PartOf(streams_[self()].bytes(), copied_chunks_);
    if (part.bytes == 0) return false;
    streams_[self()].CopyThrough(part.first, part.bytes);
    ++copied_chunks_;
    return true;
  }

  Result<int64_t> MoreRounds() override {
    if (!streams_.empty()) return int64_t{0};
    HS_RETURN_IF_ERROR(CheckCounts());
    HS_RETURN_IF_ERROR(LayOut());
    int64_t longest = 0;
    for (const SegmentMap& stream : streams_) longest = std::max(longest, stream.bytes());
    const int64_t rounds = DivideUp(longest, chunk_bytes());
    return peers().empty() ? 0 : rounds;
  }

  // The sums of all sizes that follow from the counts are sizes.
  Status CheckCounts() {
    int64_t sum = 0;
    for (uint32_t member = 0; member < size(); ++member) {
      for (size_t i = 0; i < items_.size(); ++i) {
        const int64_t rows = CountsOf(member)[i];
        if (AddRowBytes(rows, items_[i].row_bytes, &sum)) continue;
        return Status::Protocol("allgather: member " + std::to_string(member) + " announced " +
                                std::to_string(rows) + " rows of " +
                                std::to_string(items_[i].row_bytes) + " bytes for tensor " +
                                std::to_string(i) + ", which can't be");
      }
    }
    return Status::Ok();
  }

  Status LayOut() {
    std::vector<std::vector<Segment>> streams(size());
    results_->clear();
    results_->resize(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      AllgatherResult& result = (*results_)[i];
      int64_t bytes = 0;
      for (uint32_t member = 0; member < size(); ++member) {
        result.rows.push_back(CountsOf(member)[i]);
        bytes += result.rows.back() * items_[i].row_bytes;
      }
      Result<OwnedBytes> data = AllocateResult("allgather", bytes);
      if (!data.ok()) return data.status();
      result.data = data.TakeValue();
      std::byte* out = result.data.get();
      for (uint32_t member = 0; member < size(); ++member) {
        const int64_t part = result.rows[member] * items_[i].row_bytes;
        if (part == 0) continue;
        streams[member].push_back({member == self() ? items_[i].in : nullptr, out, part});
        out += part;
      }
    }
    for (std::vector<Segment>& stream : streams) streams_.emplace_back(std::move(stream));
    return Status::Ok();
  }

  const std::vector<AllgatherItem> items_;
  std::vector<AllgatherResult>* const results_;
  const int64_t count_rounds_;
  std::vector<int64_t> counts_;      // rows, by member and item
  std::vector<SegmentMap> streams_;  // by member, once the counts are known
  int64_t copied_chunks_ = 0;        // of the own stream
};

}  // namespace

std::unique_ptr<Collective> MakeAllgather(Exchange& exchange, AllgatherArgs args) {
  return std::make_unique<Allgather>(exchange, std::move(args));
}

}  // namespace horoscale
