#include "platform/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

namespace horoscale {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

size_t ResidentBytes(int fd) {
  struct stat info;
  fstat(fd, &info);
  return static_cast<size_t>(info.st_blocks) * 512;
}

TEST(SharedMemoryTest, MappingsOfOneMemFdShareBytes) {
  Result<MemFd> memory = MemFd::Create("test", kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  Result<MappedRegion> a = MappedRegion::Map(*memory);
  Result<MappedRegion> b = MappedRegion::Map(*memory);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->bytes(), kBytes);
  EXPECT_EQ(a->data()[kBytes - 1], std::byte{0});
  a->data()[kBytes - 1] = std::byte{42};
  EXPECT_EQ(b->data()[kBytes - 1], std::byte{42});
}

TEST(SharedMemoryTest, AForkedChildSharesThem) {
  Result<MemFd> memory = MemFd::Create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  Result<MappedRegion> region = MappedRegion::Map(*memory);
  ASSERT_TRUE(region.ok());
  const pid_t child = fork();
  if (child == 0) {
    region->data()[5] = std::byte{7};
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(region->data()[5], std::byte{7});
}

TEST(SharedMemoryTest, IsSparseAndGivesPagesBack) {
  const size_t huge = size_t{1} << 40;
  Result<MemFd> memory = MemFd::Create("test", huge);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_EQ(ResidentBytes(memory->fd()), 0u);
  Result<MemFd> small = MemFd::Create("test", kBytes);
  Result<MappedRegion> region = MappedRegion::Map(*small);
  ASSERT_TRUE(region.ok());
  for (size_t i = 0; i < kBytes; i += 4096) region->data()[i] = std::byte{1};
  EXPECT_EQ(ResidentBytes(small->fd()), kBytes);
  ASSERT_TRUE(small->Discard(0, kBytes / 2).ok());
  EXPECT_EQ(ResidentBytes(small->fd()), kBytes / 2);
  EXPECT_EQ(region->data()[0], std::byte{0});
  EXPECT_EQ(region->data()[kBytes / 2], std::byte{1});
}

TEST(SharedMemoryTest, TheSizeIsSealedAndTheModePrivate) {
  Result<MemFd> memory = MemFd::Create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(ftruncate(memory->fd(), 4096), -1);
  EXPECT_EQ(ftruncate(memory->fd(), 2 * kBytes), -1);
  struct stat info;
  fstat(memory->fd(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_NE(fcntl(memory->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedMemoryTest, AdoptsOnlySealedMemory) {
  Result<MemFd> memory = MemFd::Create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  Result<MemFd> adopted = MemFd::Adopt(UniqueFd(dup(memory->fd())));
  ASSERT_TRUE(adopted.ok());
  EXPECT_EQ(adopted->bytes(), kBytes);

  UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(MemFd::Adopt(std::move(unsealed)).status().code(), StatusCode::kProtocol);
  EXPECT_EQ(MemFd::Adopt(UniqueFd(eventfd(0, 0))).status().code(), StatusCode::kProtocol);
  EXPECT_EQ(MemFd::Adopt(UniqueFd()).status().code(), StatusCode::kProtocol);
}

TEST(SharedMemoryTest, RefusesWhatCannotBe) {
  EXPECT_FALSE(MemFd::Create("test", ~size_t{0}).ok());
  Result<MemFd> empty = MemFd::Create("test", 0);
  ASSERT_TRUE(empty.ok());
  const Result<MappedRegion> region = MappedRegion::Map(*empty);
  EXPECT_EQ(region.status().code(), StatusCode::kSystem);
}

TEST(SharedMemoryTest, MovingARegionMovesTheMapping) {
  Result<MemFd> memory = MemFd::Create("test", kBytes);
  ASSERT_TRUE(memory.ok());
  MappedRegion a = MappedRegion::Map(*memory).TakeValue();
  std::byte* const data = a.data();
  MappedRegion b = std::move(a);
  EXPECT_EQ(b.data(), data);
  MappedRegion c;
  c = std::move(b);
  c.data()[0] = std::byte{1};
  EXPECT_EQ(c.data(), data);
}

}  // namespace
}  // namespace horoscale
