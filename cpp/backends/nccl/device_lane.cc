#include "backends/nccl/device_lane.h"

#include <functional>
#include <map>
#include <utility>

#include "backends/native/native.h"
#include "backends/nccl/lane_connector.h"
#include "backends/nccl/nccl_calls.h"

namespace horoscale {
namespace {

// The first bucket of a lane. The members' agreement determines how it continues.
class ConnectingCollective final : public Collective {
 public:
  using Next = std::function<std::unique_ptr<Collective>()>;

  ConnectingCollective(DeviceLane& lane, Exchange& exchange, Next next)
      : connector_(lane, exchange), next_(std::move(next)) {}

  Result<Progress> Step() override {
    if (started_ != nullptr) return started_->Step();
    const auto progress = connector_.Step();
    if (!progress.ok() || *progress != Progress::kDone) return progress;
    started_ = next_();
    return Progress::kAdvanced;
  }

 private:
  LaneConnector connector_;
  const Next next_;
  std::unique_ptr<Collective> started_;
};

}  // namespace

Result<std::unique_ptr<DeviceLane>> DeviceLane::Create(CudaDevice& device,
                                                       const DeviceLaneOptions& options) {
  std::unique_ptr<DeviceLane> lane(new DeviceLane(device, options));
  const auto stream = device.CreateStream();
  if (!stream.ok()) return stream.status();
  lane->stream_ = *stream;
  return lane;
}

DeviceLane::~DeviceLane() {
  End(NcclCommunicator::How::kAbort);
  fusion_buffer_.reset();
  if (stream_ != nullptr) device_.DestroyStream(stream_);
}

std::unique_ptr<Collective> DeviceLane::Start(Exchange& exchange, FusedOperation& operation,
                                              LaunchTurn turn) {
  const auto start = [this, &exchange, &operation, turn]() -> std::unique_ptr<Collective> {
    if (communicator_ != nullptr && IsServedByNccl(operation)) {
      return StartOnNccl(*this, exchange, operation, turn);
    }
    turn.Pass();
    return StartThroughHost(*this, exchange, operation);
  };
  // Joined ranks may have no device, so they are left out of the agreement.
  if (is_connected_ || !operation.absent.empty()) return start();
  return std::make_unique<ConnectingCollective>(*this, exchange, [this, start] {
    is_connected_ = true;
    return start();
  });
}

Result<std::byte*> DeviceLane::FusionBuffer(int64_t bytes) {
  if (fusion_bytes_ < bytes) {
    fusion_buffer_.reset();
    fusion_bytes_ = 0;
    auto made = device_.Allocate(static_cast<size_t>(bytes), stream_, stream_);
    if (!made.ok()) return made.status();
    fusion_buffer_ = made.TakeValue();
    fusion_bytes_ = bytes;
  }
  return fusion_buffer_.get();
}

Status DeviceLane::Poll() const {
  if (communicator_ == nullptr) return Status::Ok();
  return communicator_->Poll().status();
}

void DeviceLane::End(NcclCommunicator::How how) {
  if (communicator_ == nullptr) return;
  ending_ = communicator_->End(how);
  communicator_.reset();
}

Status WaitForInputs(const DeviceLane& lane, const FusedOperation& operation) {
  std::map<CudaStreamHandle, const CudaReady*> last;  // per stream
  for (const CudaReady& ready : operation.ready) {
    const CudaReady*& known = last[ready.stream];
    if (known == nullptr || known->serial < ready.serial) known = &ready;
  }
  for (const auto& [stream, ready] : last) {
    HS_RETURN_IF_ERROR(lane.device().Wait(lane.stream(), *ready->event));
  }
  return Status::Ok();
}

}  // namespace horoscale
