#include "platform/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace horoscale {
namespace {

class OutputFileTest : public ::testing::Test {
 protected:
  OutputFileTest() {
    char folder[] = "/tmp/horoscale_output_XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ / "file";
    old_mask_ = umask(0);
  }
  ~OutputFileTest() override {
    umask(old_mask_);
    std::filesystem::remove_all(folder_);
  }

  void Put(const std::filesystem::path& path, const char* text, mode_t mode) {
    std::ofstream(path) << text;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  static std::string Read(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static mode_t ModeOf(const std::filesystem::path& path) {
    struct stat info{};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  std::string WhyNot() {
    const auto file = CreateOutputFile(path_);
    EXPECT_FALSE(file.ok());
    return file.ok() ? "" : file.status().message();
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
  mode_t old_mask_;
};

TEST_F(OutputFileTest, OnlyItsOwnerCanReadIt) {
  {
    auto file = CreateOutputFile(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    std::fputs("new", file->get());
  }
  EXPECT_EQ(ModeOf(path_), 0600u);
  EXPECT_EQ(Read(path_), "new");
}

TEST_F(OutputFileTest, AnEarlierOneIsEmptiedAndClosedToOthers) {
  Put(path_, "what was there before", 0666);
  ASSERT_TRUE(CreateOutputFile(path_).ok());
  EXPECT_EQ(ModeOf(path_), 0600u);
  EXPECT_EQ(Read(path_), "");
}

TEST_F(OutputFileTest, LinksAreNotFollowed) {
  Put(folder_ / "precious", "untouched", 0644);
  std::filesystem::create_symlink(folder_ / "precious", path_);
  EXPECT_NE(WhyNot().find("link"), std::string::npos);
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(folder_ / "nothing", path_);
  EXPECT_NE(WhyNot().find("link"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "nothing"));
  std::filesystem::remove(path_);
  std::filesystem::create_hard_link(folder_ / "precious", path_);
  EXPECT_NE(WhyNot().find("several hard links"), std::string::npos);
  EXPECT_EQ(Read(folder_ / "precious"), "untouched");
  EXPECT_EQ(ModeOf(folder_ / "precious"), 0644u);
}

TEST_F(OutputFileTest, AFileOfAnotherUserIsNotWrittenTo) {
  Put(path_, "theirs", 0666);
  if (chown(path_.c_str(), 65534, 65534) != 0) GTEST_SKIP() << "needs root";
  EXPECT_NE(WhyNot().find("another user"), std::string::npos);
  EXPECT_EQ(Read(path_), "theirs");
}

// Whether or not anybody reads it.
TEST_F(OutputFileTest, APipeIsRefused) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0666), 0);
  WhyNot();
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  EXPECT_NE(WhyNot().find("not a regular file"), std::string::npos);
  close(reader);
}

TEST_F(OutputFileTest, ADeviceIsTakenAsItIs) {
  const mode_t before = ModeOf("/dev/null");
  EXPECT_TRUE(CreateOutputFile("/dev/null").ok());
  EXPECT_EQ(ModeOf("/dev/null"), before);
}

}  // namespace
}  // namespace horoscale
