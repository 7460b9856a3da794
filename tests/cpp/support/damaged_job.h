// A job of two ranks in one thread, one of which is faulty: its frames are modified, truncated,
// repeated or mixed with invented ones, as determined by input bytes. The other rank must handle
// that: each of its operations ends exactly once, and nothing crashes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mailbox.h"
#include "runtime/runtime.h"
#include "support/relayed_transport.h"
#include "transport/inproc/inproc_fabric.h"

namespace horoscale::testing {

// Draws values from the input bytes; zeros after their end.
class DrawnBytes {
 public:
  explicit DrawnBytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint8_t Next() {
    if (bytes_.empty()) return 0;
    const uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::vector<std::byte> Next(size_t count) {
    std::vector<std::byte> some(count);
    for (std::byte& one : some) one = static_cast<std::byte>(Next());
    return some;
  }

 private:
  std::span<const uint8_t> bytes_;
};

class DamagingTransport final : public RelayedTransport {
 public:
  DamagingTransport(std::unique_ptr<Transport> inner, DrawnBytes& drawn)
      : RelayedTransport(std::move(inner)), drawn_(drawn) {}

  void Send(int to, const FrameHeader& header, std::span<const std::byte> payload) override {
    std::vector<std::byte> bytes(payload.begin(), payload.end());
    switch (drawn_.Next() % 8) {
      case 1:
        if (!bytes.empty())
          bytes[drawn_.Next() % bytes.size()] = static_cast<std::byte>(drawn_.Next());
        break;
      case 2:
        bytes.resize(drawn_.Next() % (bytes.size() + 1));
        break;
      case 3:
        Invent(to, header);
        break;
      case 4:
        RelayedTransport::Send(to, header, bytes);
        break;
      default:  // usually unchanged, otherwise the job would end immediately
        break;
    }
    RelayedTransport::Send(to, header, bytes);
  }

 private:
  // Of any kind except those internal to transports.
  void Invent(int to, FrameHeader header) {
    constexpr std::array kKinds = {
        FrameKind::kReport, FrameKind::kPlan,    FrameKind::kGoodbye,  FrameKind::kPoison,
        FrameKind::kStall,  FrameKind::kProbe,   FrameKind::kLaunch,   FrameKind::kGroupReport,
        FrameKind::kLoss,   FrameKind::kMessage, FrameKind::kCreation, FrameKind::kPost};
    header.kind = kKinds[drawn_.Next() % kKinds.size()];
    if (const uint8_t set = drawn_.Next() % 4; set < 2) header.channel = {set, drawn_.Next() % 2u};
    const size_t count = drawn_.Next() % 40;
    RelayedTransport::Send(to, header, drawn_.Next(count));
  }

  DrawnBytes& drawn_;
};

class DamagedJob {
 public:
  explicit DamagedJob(std::span<const uint8_t> bytes) : drawn_(bytes) {
    const auto fabric = InprocFabric::Create(2, {}, {});
    if (!fabric.ok()) std::abort();
    const std::vector<std::string> hosts(2, "host");
    for (int rank = 0; rank < 2; ++rank) {
      std::unique_ptr<Transport> transport = (*fabric)->Endpoint(rank);
      if (rank == 1) transport = std::make_unique<DamagingTransport>(std::move(transport), drawn_);
      runtimes_.push_back(std::make_unique<Runtime>(Config(), TopologyOf(rank, hosts),
                                                    std::move(transport), Runtime::Driver::kTurns));
    }
  }

  // Returns whether every operation of the correct rank has ended.
  bool Run() {
    for (int round = 0; round < 3; ++round) {  // repeated operations take one hop
      for (const char* const name : {"", "loss"}) Both([&](int) { return Reduction(4, name); });
      Both([&](int) { return Collective(OpKind::kBarrier, ""); });
    }
    for (const size_t bytes : {size_t{100}, kMaxEagerBytes + 1, size_t{100'000}}) {
      Both([&](int rank) { return MessageOf(rank == 0, 1 - rank, bytes); });
      Both([&](int rank) { return MessageOf(rank == 1, 1 - rank, bytes); });
    }
    Both([&](int) { return Reduction(100'000, "large"); });
    Both([&](int) {
      const OperationPtr added = Collective(OpKind::kAddProcessSet, "registration");
      added->request.signature.ranks = {0};
      return added;
    });
    Both([&](int) { return Collective(OpKind::kJoin, ""); });
    runtimes_[0]->Shutdown("");
    for (const OperationPtr& operation : begun_) {
      if (!operation->done.load()) return false;
    }
    return true;
  }
  // By that rank.
  const std::vector<OperationPtr>& begun() const { return begun_; }

 private:
  static constexpr int kTurns = 60;

  template <typename Make>
  void Both(Make make) {
    std::array<OperationPtr, 2> pair;
    for (int rank : {0, 1}) {
      OperationPtr& operation = pair[static_cast<size_t>(rank)] = make(rank);
      const bool taken = runtimes_[static_cast<size_t>(rank)]->Enqueue(operation, true).ok();
      if (taken && rank == 0) begun_.push_back(operation);
    }
    for (int turn = 0; turn < kTurns && !(pair[0]->done.load() && pair[1]->done.load()); ++turn) {
      for (const auto& runtime : runtimes_) (void)runtime->Turn();
    }
  }

  std::byte* Memory(size_t bytes) {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    return memory_.back().get();
  }

  OperationPtr Collective(OpKind kind, const std::string& name) {
    auto operation = std::make_shared<Operation>();
    operation->request.name = name;
    operation->request.signature.kind = kind;
    return operation;
  }

  OperationPtr Reduction(int64_t elements, const std::string& name) {
    const OperationPtr operation = Collective(OpKind::kAllreduce, name);
    operation->request.signature.tensors = {{DataType::kFloat32, {elements}}};
    std::byte* const memory = Memory(static_cast<size_t>(elements) * sizeof(float));
    operation->tensors = {{memory, memory, elements, static_cast<int64_t>(sizeof(float))}};
    return operation;
  }

  OperationPtr MessageOf(bool is_send, int peer, size_t bytes) {
    auto operation = std::make_shared<Operation>();
    operation->message = std::make_unique<Message>();
    *operation->message = {is_send, peer, {0, 0, DataType::kUint8, bytes}, Memory(bytes)};
    return operation;
  }

  DrawnBytes drawn_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<OperationPtr> begun_;                 // by rank 0
  std::vector<std::unique_ptr<Runtime>> runtimes_;  // destroyed first
};

}  // namespace horoscale::testing
