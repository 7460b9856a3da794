#include "platform/streaming_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace horoscale {
namespace {

TEST(StreamingCopyTest, CopiesAnyBytesToAnyPlaceAndNoOthers) {
  constexpr size_t kMost = 400;
  constexpr std::byte kUntouched{255};
  std::vector<std::byte> from(kMost + 3);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251);
  for (size_t skip = 0; skip <= 65; ++skip) {
    for (size_t bytes = 0; bytes <= kMost; bytes += bytes < 140 ? 1 : 13) {
      std::vector<std::byte> to(skip + kMost + 1, kUntouched);
      StreamingCopy(to.data() + skip, from.data() + 3, bytes);
      for (size_t i = 0; i < to.size(); ++i) {
        const bool is_copied = i >= skip && i < skip + bytes;
        ASSERT_EQ(to[i], is_copied ? from[3 + i - skip] : kUntouched)
            << bytes << " bytes after " << skip << ", at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace horoscale
