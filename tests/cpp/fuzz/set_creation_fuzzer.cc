// Any bytes: decoding a frame of a set's creation does not crash, and what it accepts survives the
// wire; a leader or member that receives it continues.

#include <cstdint>
#include <cstdlib>

#include "core/set_creations.h"

namespace {

class NoSets final : public horoscale::SetCreations::Registered {
 public:
  std::optional<int> IdOf(const std::vector<int>&) const override { return std::nullopt; }
  bool HasId(int) const override { return false; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  const auto value = DecodeSetCreationFrame(std::as_bytes(std::span(data, size)));
  if (!value.ok()) return 0;
  const std::vector<std::byte> bytes = Encode(*value);
  const auto again = DecodeSetCreationFrame(bytes);
  if (!again.ok() || Encode(*again) != bytes) std::abort();
  const NoSets sets;
  SetCreations leader(0, 4, sets);
  (void)leader.Call({{0, 1}, false, ""});
  (void)leader.OnFrame(1, *value);
  SetCreations member(1, 4, sets);
  (void)member.Call({{0, 1}, false, ""});
  (void)member.OnFrame(0, *value);
  return 0;
}
