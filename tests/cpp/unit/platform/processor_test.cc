#include "platform/processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace horoscale {
namespace {

#if defined(__x86_64__)
// Linux's flags of the first processor: a flag is listed if programs can use it.
std::set<std::string> FlagsOfLinux() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

TEST(ProcessorTest, FindsTheInstructionsThatLinuxLists) {
  const std::set<std::string> flags = FlagsOfLinux();
  ASSERT_TRUE(flags.contains("sse2")) << "/proc/cpuinfo has no flags";
  const bool avx2 = flags.contains("avx2") && flags.contains("f16c");
  const bool avx512 = avx2 && flags.contains("avx512f") && flags.contains("avx512bw") &&
                      flags.contains("avx512dq") && flags.contains("avx512vl");
  const VectorInstructions found = FindVectorInstructions();
  EXPECT_EQ(found.avx2, avx2);
  EXPECT_EQ(found.avx512, avx512);
}
#endif

}  // namespace
}  // namespace horoscale
