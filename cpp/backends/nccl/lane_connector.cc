#include "backends/nccl/lane_connector.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "backends/nccl/nccl_library.h"
#include "platform/log.h"

namespace horoscale {
namespace {

bool SharesDevices() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::string(value) == "1";
}

void Complain(LaneHello& hello, const std::string& problem) {
  hello.nccl_version = 0;
  const std::string line = problem.substr(0, problem.find('\n'));
  std::snprintf(hello.problem, sizeof(hello.problem), "%s", line.c_str());
}

bool SameDevice(const LaneHello& a, const LaneHello& b) {
  return std::memcmp(&a.device, &b.device, sizeof(a.device)) == 0;
}

std::string Rank(int rank) { return "rank " + std::to_string(rank); }

std::string FusionOf(const LaneHello& hello) { return hello.fuses != 0 ? "buffer" : "grouped"; }

}  // namespace

std::string ObjectionTo(std::span<const LaneHello> hellos, std::span<const int> ranks) {
  for (size_t i = 0; i < hellos.size(); ++i) {
    if (hellos[i].nccl_version != 0) continue;
    const std::string problem(hellos[i].problem,
                              strnlen(hellos[i].problem, sizeof(hellos[i].problem)));
    return Rank(ranks[i]) + " can't: " + problem;
  }
  const int version = hellos.front().nccl_version;
  for (size_t i = 1; i < hellos.size(); ++i) {
    if (hellos[i].nccl_version == version) continue;
    return "NCCL versions differ: " + Rank(ranks[0]) + " has " + NcclLibrary::VersionText(version) +
           ", " + Rank(ranks[i]) + " has " + NcclLibrary::VersionText(hellos[i].nccl_version);
  }
  for (size_t i = 1; i < hellos.size(); ++i) {
    if (hellos[i].fuses == hellos[0].fuses) continue;
    return "DEVICE_FUSION differs: " + Rank(ranks[0]) + " has " + FusionOf(hellos[0]) + ", " +
           Rank(ranks[i]) + " has " + FusionOf(hellos[i]);
  }
  for (size_t i = 0; i < hellos.size(); ++i) {
    for (size_t j = i + 1; j < hellos.size(); ++j) {
      if (!SameDevice(hellos[i], hellos[j])) continue;
      const bool permitted = version >= nccl::kMultiRankVersion && hellos[i].shares_devices != 0 &&
                             hellos[j].shares_devices != 0;
      if (permitted) continue;
      return Rank(ranks[i]) + " and " + Rank(ranks[j]) +
             " share a device, which NCCL supports from version 2.30.3 with "
             "NCCL_MULTI_RANK_GPU_ENABLE=1";
    }
  }
  return "";
}

LaneConnector::LaneConnector(DeviceLane& lane, Exchange& exchange)
    : lane_(lane), exchange_(exchange), hello_(OwnHello()) {
  AllgatherArgs args;
  args.items = {{reinterpret_cast<const std::byte*>(&hello_), 1, sizeof(LaneHello)}};
  args.results = &answers_;
  exchange_of_hellos_ = MakeAllgather(exchange, std::move(args));
}

LaneHello LaneConnector::OwnHello() const {
  LaneHello hello;
  hello.device = lane_.device().uuid();
  hello.shares_devices = SharesDevices() ? 1 : 0;
  hello.fuses = lane_.options().fusion_buffer ? 1 : 0;
  if (lane_.options().nccl == NcclUse::kNever) {
    Complain(hello, "HOROSCALE_BACKEND=native");
    return hello;
  }
  const auto library = NcclLibrary::Open();
  if (!library.ok()) {
    Complain(hello, library.status().message());
    return hello;
  }
  hello.nccl_version = (*library)->version_number();
  if (exchange_.self() != 0) return hello;
  const CudaContextScope scope(lane_.device());
  const Status made =
      (*library)->Check((*library)->call().ncclGetUniqueId(&hello.id), "ncclGetUniqueId");
  if (!made.ok()) Complain(hello, made.message());
  return hello;
}

Result<Progress> LaneConnector::Step() {
  if (exchange_of_hellos_ != nullptr) {
    const SealedChunks sealed(exchange_);  // they contain the address to which NCCL connects
    const auto progress = exchange_of_hellos_->Step();
    if (!progress.ok() || *progress != Progress::kDone) return progress;
    exchange_of_hellos_.reset();
    HS_RETURN_IF_ERROR(Decide());
    return lane_.communicator_ == nullptr ? Progress::kDone : Progress::kAdvanced;
  }
  const auto is_ready = lane_.communicator_->Poll();
  if (!is_ready.ok()) return is_ready.status();
  return *is_ready ? Progress::kDone : Progress::kIdle;
}

Status LaneConnector::Decide() {
  std::vector<LaneHello> hellos(exchange_.size());
  std::memcpy(hellos.data(), answers_.front().data.get(), hellos.size() * sizeof(LaneHello));
  const std::string objection = ObjectionTo(hellos, lane_.options().ranks);
  if (objection.empty()) {
    auto made = NcclCommunicator::Create(**NcclLibrary::Open(), lane_.device(),
                                         static_cast<int>(exchange_.size()),
                                         static_cast<int>(exchange_.self()), hellos.front().id);
    if (!made.ok()) return made.status();
    lane_.communicator_ = made.TakeValue();
    return Status::Ok();
  }
  const std::string set = "process set " + std::to_string(lane_.options().process_set_id);
  if (lane_.options().nccl == NcclUse::kRequired) {
    return {StatusCode::kUnimplemented,
            "HOROSCALE_BACKEND=nccl, but the members of " + set + " can't use NCCL: " + objection};
  }
  const bool was_asked_for = std::any_of(hellos.begin(), hellos.end(), [](const LaneHello& hello) {
    return std::string_view(hello.problem) == "HOROSCALE_BACKEND=native";
  });
  if (exchange_.self() == 0 && !was_asked_for) {
    Log(LogLevel::kWarning, "CUDA tensors of " + set +
                                " go through host memory, which is slow, because its members can't "
                                "use NCCL: " +
                                objection);
  }
  return Status::Ok();
}

}  // namespace horoscale
