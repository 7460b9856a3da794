#include "collectives/counted_loop.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/unequal.h"

namespace horoscale {

CountedLoop::CountedLoop(Exchange& exchange, std::string_view operation,
                         std::vector<AllgatherItem> items, std::span<const int64_t> remarks)
    : RoundLoop(exchange, Participants(exchange, {}),
                RoundsFor(exchange, items.size() + remarks.size())),
      operation_(operation),
      items_(std::move(items)),
      width_(items_.size() + remarks.size()),
      count_rounds_(RoundsFor(exchange, width_)),
      words_(size() * width_) {
  for (size_t i = 0; i < items_.size(); ++i) WordsOf(self())[i] = items_[i].rows;
  std::copy(remarks.begin(), remarks.end(), WordsOf(self()) + items_.size());
}

int64_t CountedLoop::RoundsFor(const Exchange& exchange, size_t words) {
  if (exchange.size() == 1) return 0;
  return DivideUp(static_cast<int64_t>(words * sizeof(int64_t)),
                  static_cast<int64_t>(exchange.chunk_bytes()));
}

ByteRange CountedLoop::WordsPart(int64_t round) const {
  const auto total = static_cast<int64_t>(width_ * sizeof(int64_t));
  const int64_t first = round * chunk_bytes();
  return {first, std::clamp(total - first, int64_t{0}, chunk_bytes())};
}

bool CountedLoop::SendCounts(int64_t round) {
  std::byte* bank = Reserve(round);
  if (bank == nullptr) return false;
  const ByteRange part = WordsPart(round);
  const auto* words = reinterpret_cast<const std::byte*>(WordsOf(self()));
  std::memcpy(bank, words + part.first, static_cast<size_t>(part.bytes));
  const SealedChunks sealed = Sealed();
  PublishToPeers(round, part.bytes);
  return true;
}

Progress CountedLoop::ReceiveCounts(int64_t round) {
  return ReceiveFromEach(
      round, [](uint32_t) { return true; },
      [&](uint32_t peer, const std::byte* chunk) {
        const ByteRange part = WordsPart(round);
        auto* words = reinterpret_cast<std::byte*>(WordsOf(peer));
        std::memcpy(words + part.first, chunk, static_cast<size_t>(part.bytes));
      });
}

Status CountedLoop::CheckCounts() const {
  int64_t sum = 0;
  for (uint32_t member = 0; member < size(); ++member) {
    for (size_t i = 0; i < items_.size(); ++i) {
      const int64_t rows = Rows(member, i);
      if (AddRowBytes(rows, items_[i].row_bytes, &sum)) continue;
      return Status::Protocol(std::string(operation_) + ": member " + std::to_string(member) +
                              " announced " + std::to_string(rows) + " rows of " +
                              std::to_string(items_[i].row_bytes) + " bytes for tensor " +
                              std::to_string(i) + ", which can't be");
    }
  }
  return Status::Ok();
}

}  // namespace horoscale
