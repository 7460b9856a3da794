#include "runtime/mpi_launcher.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace horoscale {
namespace {

std::optional<MpiLauncher> Find(const std::map<std::string, std::string>& variables) {
  return FindMpiLauncher([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(MpiLauncherTest, LaunchersAreKnownByTheirVariables) {
  const auto open_mpi = Find({{"OMPI_COMM_WORLD_SIZE", "4"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->size, 4);
  EXPECT_EQ(open_mpi->variable, "OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(Find({{"PMI_SIZE", "1"}})->size, 1);
  // mpirun within a Slurm step
  EXPECT_EQ(Find({{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "8"}})->size, 8);
}

TEST(MpiLauncherTest, WhatIsNoLauncher) {
  EXPECT_FALSE(Find({}));
  EXPECT_FALSE(Find({{"SLURM_NTASKS", "4"}}));          // a batch script
  EXPECT_FALSE(Find({{"SLURM_STEP_NUM_TASKS", "1"}}));  // does not mention MPI
  EXPECT_FALSE(Find({{"PMI_SIZE", "many"}}));
  EXPECT_FALSE(Find({{"OMPI_COMM_WORLD_SIZE", "0"}}));
}

}  // namespace
}  // namespace horoscale
