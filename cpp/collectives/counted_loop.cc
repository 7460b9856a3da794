#include "collectives/counted_loop.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/unequal.h"

namespace horoscale {

CountedLoop::CountedLoop(Exchange& exchange, std::string_view operation,
                         std::vector<AllgatherItem> items)
    : RoundLoop(exchange, Participants(exchange, {}), RoundsFor(exchange, items.size())),
      operation_(operation),
      items_(std::move(items)),
      count_rounds_(RoundsFor(exchange, items_.size())),
      counts_(size() * items_.size()) {
  for (size_t i = 0; i < items_.size(); ++i) CountsOf(self())[i] = items_[i].rows;
}

int64_t CountedLoop::RoundsFor(const Exchange& exchange, size_t items) {
  if (exchange.size() == 1) return 0;
  return DivideUp(static_cast<int64_t>(items * sizeof(int64_t)),
                  static_cast<int64_t>(exchange.chunk_bytes()));
}

ByteRange CountedLoop::CountsPart(int64_t round) const {
  const auto total = static_cast<int64_t>(items_.size() * sizeof(int64_t));
  const int64_t first = round * chunk_bytes();
  return {first, std::clamp(total - first, int64_t{0}, chunk_bytes())};
}

bool CountedLoop::SendCounts(int64_t round) {
  std::byte* bank = Reserve(round);
  if (bank == nullptr) return false;
  const ByteRange part = CountsPart(round);
  const auto* counts = reinterpret_cast<const std::byte*>(CountsOf(self()));
  std::memcpy(bank, counts + part.first, static_cast<size_t>(part.bytes));
  const SealedChunks sealed = Sealed();
  PublishToPeers(round, part.bytes);
  return true;
}

Progress CountedLoop::ReceiveCounts(int64_t round) {
  return ReceiveFromEach(
      round, [](uint32_t) { return true; },
      [&](uint32_t peer, const std::byte* chunk) {
        const ByteRange part = CountsPart(round);
        auto* counts = reinterpret_cast<std::byte*>(CountsOf(peer));
        std::memcpy(counts + part.first, chunk, static_cast<size_t>(part.bytes));
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
