// DeviceLane: how one process set moves its CUDA tensors on this rank: a private stream and a
// communicator of NCCL's, both made when the set's first CUDA bucket is executed.
//
// The members tell each other what they have (over the set's Exchange). Where all have one version
// of NCCL and a device of their own, NCCL carries the set's CUDA tensors; else they go through
// pinned host memory and the native backend, which the set's lowest rank says once.
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
  kAuto,      // where it can be used
  kNever,     // host memory
  kRequired,  // an error where it can't
};

struct DeviceLaneOptions {
  NcclUse nccl = NcclUse::kAuto;
  bool fusion_buffer = false;  // copies of a bucket's tensors in one, instead of grouped calls
  int process_set_id = 0;
  std::vector<int> ranks;  // of the set
};

// A bucket's place among the launches of all sets of this rank.
struct LaunchTurn {
  LaunchOrder* order = nullptr;  // null: there is no other set
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

  // Starts a bucket, which must outlive the collective. It is done when the device has its work.
  std::unique_ptr<Collective> Start(Exchange& exchange, FusedOperation& operation, LaunchTurn turn);

  // An asynchronous error of the communicator.
  Status Poll() const;
  // For a collective that copies the bucket's tensors together: at least so large, and in use only
  // by what the lane's stream holds.
  Result<std::byte*> FusionBuffer(int64_t bytes);
  // Whether the members have agreed on NCCL, and have met there.
  bool CanLaunch() const { return is_connected_ && communicator_ != nullptr; }
  // Null where NCCL is not used, or not yet.
  const NcclCommunicator* communicator() const { return communicator_.get(); }

  // Nothing is started afterwards.
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

// Makes the lane's stream wait for what the bucket's tensors wait for.
Status WaitForInputs(const DeviceLane& lane, const FusedOperation& operation);

}  // namespace horoscale
