#include "nccl/device_ranks.h"

#include <stdlib.h>

#include <chrono>
#include <numeric>
#include <sstream>
#include <thread>

// Called by ThreadSanitizer. Any thread may free the thread-local memory of a detached thread that
// has ended. It learns of the end from the kernel, which the sanitizer doesn't see.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }

namespace horoscale::testing {

Double::Double() {
  setenv("HOROSCALE_LIBCUDA", NCCL_DOUBLE, 1);
  setenv("HOROSCALE_LIBNCCL", NCCL_DOUBLE, 1);
  const auto library = DynamicLibrary::Open(NCCL_DOUBLE);
  if (!library.ok()) {
    ADD_FAILURE() << library.status().message();
    abort();
  }
#define HS_FIND(member, name) member = library->FindFunction<decltype(name)>(#name)
  HS_FIND(set_exclusive, double_set_exclusive);
  HS_FIND(set_delay, double_set_delay);
  HS_FIND(hold, double_hold);
  HS_FIND(keep_busy, double_keep_busy);
  HS_FIND(fail_next, double_fail_next);
  HS_FIND(block, double_block);
  HS_FIND(refuse_pinned, double_refuse_pinned);
  HS_FIND(set_capturing, double_set_capturing);
  HS_FIND(live_communicators, double_live_communicators);
  HS_FIND(aborted_communicators, double_aborted_communicators);
  HS_FIND(log_, double_log);
#undef HS_FIND
}

const Double& Double::Get() {
  static const Double opened;
  return opened;
}

std::vector<std::string> Double::Launches(int device) const {
  std::vector<std::string> communicators;
  for (auto& [communicator, calls] : Log(device)) communicators.push_back(communicator);
  return communicators;
}

std::vector<std::string> Double::Calls(int device) const {
  std::vector<std::string> all;
  for (auto& [communicator, calls] : Log(device)) all.push_back(calls);
  return all;
}

std::vector<std::pair<std::string, std::string>> Double::Log(int device) const {
  std::string text(log_(device, nullptr, 0), '\0');
  text.resize(std::min(text.size(), log_(device, text.data(), text.size())));
  std::vector<std::pair<std::string, std::string>> kernels;
  std::istringstream lines(text);
  for (std::string communicator, calls; lines >> communicator >> calls;) {
    kernels.emplace_back(communicator, calls);
  }
  return kernels;
}

CudaDevice& Device(int ordinal) {
  (void)Double::Get();
  const auto device = CudaDevice::Get(ordinal);
  if (!device.ok()) {
    ADD_FAILURE() << device.status().message();
    abort();
  }
  return **device;
}

void DeviceTest::SetUp() {
  const Double& knobs = Double::Get();
  knobs.set_exclusive(0);
  knobs.refuse_pinned(0);
  for (int device = 0; device < 8; ++device) {
    knobs.set_delay(device, 0);
    knobs.hold(device, 0);
    knobs.keep_busy(device, 0);
    knobs.fail_next(device, 0);
  }
}

void DeviceTest::TearDown() {
  // Threads end the communicators.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (Double::Get().live_communicators() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(Double::Get().live_communicators(), 0);
}

void RunAll(Ranks& ranks, const Ranks::Body& body) {
  ranks.Run([&](int rank, Runtime& runtime) {
    body(rank, runtime);
    runtime.Shutdown("");
  });
}

OperationPtr Moved(OpKind kind, const std::vector<float>& in, int64_t row_floats) {
  auto operation = std::make_shared<Operation>();
  operation->request.name = "moved";
  Signature& signature = operation->request.signature;
  signature.kind = kind;
  const auto rows = static_cast<int64_t>(in.size()) / row_floats;
  signature.tensors = {
      {DataType::kFloat32, {HasFreeFirstDimension(kind) ? kFreeDimension : rows, row_floats}}};
  operation->tensors = {
      {reinterpret_cast<const std::byte*>(in.data()), nullptr, rows, row_floats * 4}};
  return operation;
}

std::vector<float> ResultOf(const Operation& operation) {
  const AllgatherResult& result = operation.results.front();
  const int64_t rows = std::accumulate(result.rows.begin(), result.rows.end(), int64_t{0});
  const auto* floats = reinterpret_cast<const float*>(result.data.get());
  return {floats, floats + rows * operation.tensors.front().row_bytes / 4};
}

}  // namespace horoscale::testing
