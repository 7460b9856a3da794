#include "platform/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace horoscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DynamicLibraryTest, FunctionsAreFoundByName) {
  const auto library = DynamicLibrary::Open("libm.so.6");
  ASSERT_TRUE(library.ok()) << library.status().message();
  auto* const cosine = library->FindFunction<double(double)>("cos");
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library->Find("no_such_function"), nullptr);
  EXPECT_THAT(DynamicLibrary::FileOf(reinterpret_cast<const void*>(cosine)), HasSubstr("libm"));
}

TEST(DynamicLibraryTest, ALibraryThatIsNotThereIsNamed) {
  const auto library = DynamicLibrary::Open("libnot_there.so.1");
  ASSERT_FALSE(library.ok());
  EXPECT_THAT(library.status().message(), HasSubstr("libnot_there.so.1"));
}

TEST(DynamicLibraryTest, WhatTheProcessHasLoadedIsFoundAndOnlyThat) {
  ASSERT_TRUE(DynamicLibrary::Open("libm.so.6").ok());
  const auto mapped = MappedFiles("libm.so");
  ASSERT_EQ(mapped.size(), 1u);
  EXPECT_TRUE(DynamicLibrary::OpenLoaded(mapped[0]).ok());
  const auto absent = DynamicLibrary::OpenLoaded("/usr/lib/libnot_there.so");
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(absent.status().message(), HasSubstr("libnot_there.so"));
}

TEST(DynamicLibraryTest, MapsAreReadByFileNameEachFileOnce) {
  constexpr char kMaps[] =
      "7f00-7f10 r--p 00000000 08:01 12   /opt/my mpi/lib/libmpi.so.12.1\n"
      "7f10-7f20 r-xp 00010000 08:01 12   /opt/my mpi/lib/libmpi.so.12.1\n"
      "7f20-7f30 rw-p 00000000 00:00 0 \n"
      "7f30-7f40 r--p 00000000 08:01 13   /opt/libmpi/libother.so\n"
      "7f40-7f50 r--p 00000000 08:01 14   /usr/lib/libmpi_abi.so.1";
  EXPECT_THAT(MappedFilesIn(kMaps, "libmpi"),
              ElementsAre("/opt/my mpi/lib/libmpi.so.12.1", "/usr/lib/libmpi_abi.so.1"));
  EXPECT_THAT(MappedFilesIn("", "libmpi"), IsEmpty());
}

}  // namespace
}  // namespace horoscale
