#include "collectives/member_memory.h"

#include <cstring>
#include <string>

namespace horoscale {

std::vector<Place> PlacesOf(const Exchange& exchange, const std::vector<Input>& inputs) {
  int64_t count = 0;
  int64_t total = 0;
  for (const Input& input : inputs) {
    total += input.bytes;
    if (input.bytes > 0) ++count;
  }
  // Each piece takes a system call.
  const bool are_large =
      total > MostCopiedBytes(exchange) && total >= count * (LeastDirectBytes(exchange) / 4);
  const SharedMemory& memory = *exchange.shared_memory();
  std::vector<Place> places;
  places.reserve(inputs.size());
  for (const Input& input : inputs) {
    const auto bytes = static_cast<size_t>(input.bytes);
    Place place;
    if (bytes == 0) {
      place.offset = 0;  // an empty tensor can be anywhere
    } else {
      place.offset = memory.OffsetOf(input.memory, bytes);
      if (!place.is_shared() && are_large && memory.CanBeRead(input.memory, bytes)) {
        place.address = reinterpret_cast<uint64_t>(input.memory);
      }
    }
    places.push_back(place);
  }
  return places;
}

Place ReaderPlace(const Exchange& exchange) {
  return {-1, exchange.shared_memory()->ReadsPrivate() ? uint64_t{1} : 0};
}

bool HasReachableMemory(const Exchange& exchange) {
  return exchange.shared_memory() != nullptr && exchange.size() > 1;
}

int64_t LeastDirectBytes(const Exchange& exchange) {
  return static_cast<int64_t>(exchange.chunk_bytes()) / 4;
}

int64_t MostCopiedBytes(const Exchange& exchange) {
  return static_cast<int64_t>(exchange.chunk_bytes()) * 16;
}

Result<Move> MoveFrom(const Exchange& exchange, uint32_t member, const Place& place, int64_t skip,
                      std::byte* to, int64_t bytes) {
  Move move{member, nullptr, place.address + static_cast<uint64_t>(skip), to, bytes};
  if (!place.is_shared()) return move;
  int64_t offset = 0;
  if (!__builtin_add_overflow(place.offset, skip, &offset)) {
    move.source = exchange.shared_memory()->AddressOf(member, offset, static_cast<size_t>(bytes));
  }
  if (move.source == nullptr) {
    return Status::Protocol("member " + std::to_string(member) + " announced a tensor at offset " +
                            std::to_string(place.offset) + ", where no memory of it is");
  }
  return move;
}

PlaceRound::PlaceRound(Exchange& exchange, std::vector<Place> own)
    : exchange_(exchange), own_(std::move(own)), round_(exchange.next_round++) {}

bool PlaceRound::Tell() {
  if (told_) return true;
  std::byte* const bank = exchange_.Reserve(round_);
  if (bank == nullptr) return false;
  const size_t bytes = own_.size() * sizeof(Place);
  std::memcpy(bank, own_.data(), bytes);
  exchange_.Publish(round_, bytes);
  return told_ = true;
}

const Place* PlaceRound::Heard(uint32_t member) {
  if (member == exchange_.self()) return own_.data();
  return reinterpret_cast<const Place*>(exchange_.Peek(round_, member));
}

bool DoneRound::Tell() {
  if (told_) return true;
  if (exchange_.Reserve(round_) == nullptr) return false;
  exchange_.Publish(round_, 0);
  return told_ = true;
}

bool DoneRound::Heard() {
  for (; heard_ < readers_.size(); ++heard_) {
    if (exchange_.Peek(round_, readers_[heard_]) == nullptr) return false;
  }
  exchange_.Release(round_);
  return true;
}

}  // namespace horoscale
