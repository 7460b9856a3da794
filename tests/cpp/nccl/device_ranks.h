// Ranks as threads with a device each, over the test double of NCCL and the driver.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/nccl/cuda_device.h"
#include "nccl_double/nccl_double.h"
#include "platform/dynamic_library.h"
#include "unit/runtime/ranks.h"

namespace horoscale::testing {

// How long a test waits for an event that must not happen.
inline constexpr double kNotSeconds = 0.2;

// The double's control functions. The test opens the library; the runtime then finds it loaded.
class Double {
 public:
  static const Double& Get();

  decltype(double_set_exclusive)* set_exclusive;
  decltype(double_set_delay)* set_delay;
  decltype(double_hold)* hold;
  decltype(double_keep_busy)* keep_busy;
  decltype(double_fail_next)* fail_next;
  decltype(double_block)* block;
  decltype(double_refuse_pinned)* refuse_pinned;
  decltype(double_set_capturing)* set_capturing;
  decltype(double_live_communicators)* live_communicators;
  decltype(double_aborted_communicators)* aborted_communicators;

  // Communicators in the order in which the device received kernels from them.
  std::vector<std::string> Launches(int device) const;
  // The calls in each of these kernels.
  std::vector<std::string> Calls(int device) const;

 private:
  Double();
  std::vector<std::pair<std::string, std::string>> Log(int device) const;
  decltype(double_log)* log_;
};

CudaDevice& Device(int ordinal);

// Turns an operation into one on CUDA tensors of this device; the caller's stream is the legacy
// one.
inline OperationPtr OnCuda(OperationPtr operation, int ordinal) {
  operation->request.signature.on_device = true;
  operation->on_device = std::make_unique<OnDevice>();
  operation->on_device->device = &Device(ordinal);
  auto ready = Device(ordinal).RecordReady(nullptr);
  EXPECT_TRUE(ready.ok()) << ready.status().message();
  if (ready.ok()) operation->on_device->ready = ready.TakeValue();
  return operation;
}

// Each test starts with a fresh double and must leave no communicator behind.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
};

// Runs the body on each rank, and shuts all of them down at the same time.
void RunAll(Ranks& ranks, const Ranks::Body& body);

// An allgather, alltoall (the caller sets its splits) or reducescatter.
OperationPtr Moved(OpKind kind, const std::vector<float>& in, int64_t row_floats);
// What an allgather or an alltoall has received.
std::vector<float> ResultOf(const Operation& operation);

}  // namespace horoscale::testing
