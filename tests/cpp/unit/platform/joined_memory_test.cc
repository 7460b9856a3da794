#include "platform/joined_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "platform/shared_memory.h"

namespace horoscale {
namespace {

class JoinedMemoryTest : public testing::Test {
 protected:
  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  MappedRegion a_ = MappedRegion::Map(*MemFd::Create("a", 8 * page_)).TakeValue();
  MappedRegion b_ = MappedRegion::Map(*MemFd::Create("b", 8 * page_)).TakeValue();
};

TEST_F(JoinedMemoryTest, ShowsThePiecesSideBySide) {
  const std::array<std::byte*, 3> pieces = {b_.data() + 2 * page_, a_.data() + page_, b_.data()};
  const size_t bytes = 2 * page_;
  const Result<std::byte*> joined = JoinMemory(pieces, bytes);
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i][bytes - 1] = std::byte(i + 1);
    EXPECT_EQ((*joined)[(i + 1) * bytes - 1], std::byte(i + 1));
    (*joined)[i * bytes] = std::byte(i + 11);
    EXPECT_EQ(pieces[i][0], std::byte(i + 11));
  }
  UnmapMemory(*joined, pieces.size() * bytes);
  EXPECT_EQ(pieces[0][0], std::byte{11});
}

TEST_F(JoinedMemoryTest, OutlivesTheMappingsOfThePieces) {
  std::byte* joined;
  {
    const MappedRegion gone = MappedRegion::Map(*MemFd::Create("c", page_)).TakeValue();
    gone.data()[7] = std::byte{7};
    joined = JoinMemory(std::array{gone.data()}, page_).TakeValue();
  }
  EXPECT_EQ(joined[7], std::byte{7});
  UnmapMemory(joined, page_);
}

TEST_F(JoinedMemoryTest, IsLeftToZerosOfItsOwn) {
  a_.data()[0] = std::byte{1};
  std::byte* const joined = JoinMemory(std::array{a_.data()}, page_).TakeValue();
  ASSERT_TRUE(LeaveMemory(joined, page_).ok());
  EXPECT_EQ(joined[0], std::byte{0});
  joined[0] = std::byte{2};
  EXPECT_EQ(a_.data()[0], std::byte{1});
  UnmapMemory(joined, page_);
}

TEST_F(JoinedMemoryTest, NeedsWholePagesOfSharedMemory) {
  EXPECT_EQ(JoinMemory(std::array{a_.data() + 64}, page_).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(JoinMemory(std::array{a_.data()}, page_ / 2).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(JoinMemory(std::array{a_.data()}, 0).status().code(), StatusCode::kInvalidArgument);
  void* const own = std::aligned_alloc(page_, page_);
  EXPECT_FALSE(JoinMemory(std::array{static_cast<std::byte*>(own)}, page_).ok());
  std::free(own);
}

}  // namespace
}  // namespace horoscale
