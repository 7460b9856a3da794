#include "backends/nccl/nccl_communicator.h"

#include <chrono>
#include <thread>
#include <utility>

#include "platform/deadline.h"
#include "platform/thread.h"

namespace horoscale {
namespace {

constexpr double kFinalizeSeconds = 2;
constexpr std::chrono::milliseconds kFinalizePause(1);

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(const NcclLibrary& library,
                                                                   const CudaDevice& device,
                                                                   int size, int rank,
                                                                   const NcclUniqueId& id) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(library, device));
  NcclConfig config;
  const CudaContextScope scope(device);
  const int result = library.call().ncclCommInitRankConfig(&made->handle_, size, id, rank, &config);
  HS_RETURN_IF_ERROR(library.Check(result, "ncclCommInitRankConfig"));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  if (handle_ != nullptr) (void)End(How::kAbort);
}

Result<bool> NcclCommunicator::Poll() const {
  int state = nccl::kSuccess;
  const int answer = library_.call().ncclCommGetAsyncError(handle_, &state);
  HS_RETURN_IF_ERROR(library_.Check(answer, "ncclCommGetAsyncError", handle_));
  HS_RETURN_IF_ERROR(library_.Check(state, "NCCL", handle_));
  return state == nccl::kSuccess;
}

// A started group must be ended, even after a failure in it. Keeps the first failure.
Status NcclCommunicator::Launch(std::span<const Transfer> transfers,
                                CudaStreamHandle stream) const {
  const NcclFunctions& call = library_.call();
  Status status = library_.Check(call.ncclGroupStart(), "ncclGroupStart", handle_);
  for (const Transfer& transfer : transfers) {
    if (!status.ok()) break;
    const auto& [is_send, memory, bytes, peer] = transfer;
    const int to = static_cast<int>(peer);
    status = is_send
                 ? library_.Check(call.ncclSend(memory, bytes, nccl::kUint8, to, handle_, stream),
                                  "ncclSend", handle_)
                 : library_.Check(call.ncclRecv(memory, bytes, nccl::kUint8, to, handle_, stream),
                                  "ncclRecv", handle_);
  }
  const Status ended = library_.Check(call.ncclGroupEnd(), "ncclGroupEnd", handle_);
  return status.ok() ? ended : status;
}

NcclEnding NcclCommunicator::End(How how) {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  const NcclCommHandle handle = std::exchange(handle_, nullptr);
  auto thread =
      Thread::Start("hs-nccl-end", [&library = library_, &device = device_, handle, how, ended] {
        Run(library, device, handle, how);
        ended->store(true);
      });
  // NCCL may never return, so no thread joins this one. Without a thread the communicator leaks,
  // since destroying it here could block.
  if (thread.ok()) {
    thread->Detach();
  } else {
    ended->store(true);
  }
  return ended;
}

void NcclCommunicator::Run(const NcclLibrary& library, const CudaDevice& device,
                           NcclCommHandle handle, How how) {
  const NcclFunctions& call = library.call();
  const CudaContextScope scope(device);
  if (how == How::kTogether) {
    int state = call.ncclCommFinalize(handle);
    const Deadline deadline = Deadline::After(kFinalizeSeconds);
    while (state == nccl::kInProgress && deadline.SecondsLeft() > 0) {
      std::this_thread::sleep_for(kFinalizePause);
      if (call.ncclCommGetAsyncError(handle, &state) != nccl::kSuccess) break;
    }
    if (state == nccl::kSuccess) {
      (void)call.ncclCommDestroy(handle);
      return;
    }
  }
  (void)call.ncclCommAbort(handle);
}

}  // namespace horoscale
