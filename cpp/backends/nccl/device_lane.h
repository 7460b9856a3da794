// DeviceLane: the resources with which one process set transfers CUDA tensors on this rank: a
// private stream and an NCCL communicator, both created when the set's first CUDA bucket is
// executed.
//
// The members exchange their configuration over the set's Exchange. If all have the same version of
// NCCL and their own device, NCCL transfers the set's CUDA tensors. Otherwise they go through
// pinned host memory and the native backend, and the set's lowest rank logs this once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/fused_operation.h"
#include "backends/nccl/cuda_device.h"
#include "backends/nccl/nccl_communicator.h"
#include "collectives/collective.h"
#include "core/launch_order.h"
#include "transport/exchange.h"

namespace horoscale {

enum class NcclUse {
  kAuto,      // use NCCL if possible
  kNever,     // host memory
  kRequired,  // an error if NCCL can't be used
};

struct DeviceLaneOptions {
  NcclUse nccl = NcclUse::kAuto;
  bool fusion_buffer = false;  // copy a bucket's tensors into a fusion buffer instead of grouping
                               // calls
  int process_set_id = 0;
  std::vector<int> ranks;  // of the set
};

// A bucket's position among the launches of all sets of this rank.
struct LaunchTurn {
  LaunchOrder* order = nullptr;  // null: there are no other sets
  uint32_t incarnation = 0;
  uint64_t sequence = 0;

  bool IsMine() const { return order == nullptr || order->IsNext(incarnation, sequence); }
  void Pass() const {
    if (order != nullptr) order->Remove(incarnation, sequence);
  }
};

class DeviceLane {
 public:
  static Result<std::unique_ptr<DeviceLane>> Create(CudaDevice& device,
                                                    const DeviceLaneOptions& options);
  ~DeviceLane();

  CudaDevice& device() const { return device_; }
  CudaStreamHandle stream() const { return stream_; }
  const DeviceLaneOptions& options() const { return options_; }

  // Starts a bucket, which must outlive the collective. The collective is done when its work has
  // been submitted to the device.
  std::unique_ptr<Collective> Start(Exchange& exchange, FusedOperation& operation, LaunchTurn turn);

  // An asynchronous error of the communicator.
  Status Poll() const;
  // A buffer of at least `bytes`, for collectives that copy the bucket's tensors together. Only
  // work on the lane's stream uses it.
  Result<std::byte*> FusionBuffer(int64_t bytes);
  // Whether the members have agreed on NCCL and the communicator is connected.
  bool CanLaunch() const { return is_connected_ && communicator_ != nullptr; }
  // Null if NCCL is not used, or not connected yet.
  const NcclCommunicator* communicator() const { return communicator_.get(); }

  // Ends the communicator. Nothing may be started afterwards.
  void End(NcclCommunicator::How how);
  bool has_ended() const { return ending_ == nullptr || ending_->load(); }

 private:
  friend class LaneConnector;
  DeviceLane(CudaDevice& device, const DeviceLaneOptions& options)
      : device_(device), options_(options) {}

  CudaDevice& device_;
  const DeviceLaneOptions options_;
  CudaStreamHandle stream_ = nullptr;
  bool is_connected_ = false;
  std::unique_ptr<NcclCommunicator> communicator_;
  NcclEnding ending_;
  OwnedBytes fusion_buffer_;
  int64_t fusion_bytes_ = 0;
};

// Collectives of a connected lane.
std::unique_ptr<Collective> StartOnNccl(DeviceLane& lane, Exchange& exchange,
                                        FusedOperation& operation, LaunchTurn turn);
std::unique_ptr<Collective> StartThroughHost(DeviceLane& lane, Exchange& exchange,
                                             FusedOperation& operation);

// Makes the lane's stream wait for the inputs of the bucket.
Status WaitForInputs(const DeviceLane& lane, const FusedOperation& operation);

}  // namespace horoscale
