// Ranks as threads: a job of N runtimes in one process, over the inproc transport.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/runtime.h"
#include "transport/inproc/inproc_fabric.h"

namespace horoscale::testing {

inline constexpr double kDeadlineSeconds = 60;  // bounds a wait that should be short

class Ranks {
 public:
  using Body = std::function<void(int rank, Runtime& runtime)>;

  // `played`: the ranks' hosts as the control plane sees them; empty: one host.
  explicit Ranks(int size, const Config& config = {}, std::vector<uint32_t> played = {}) {
    auto fabric = InprocFabric::Create(size, {}, std::move(played));
    EXPECT_TRUE(fabric.ok());
    fabric_ = *fabric;
    const std::vector<std::string> hosts(static_cast<size_t>(size), "host");
    for (int rank = 0; rank < size; ++rank) {
      runtimes_.push_back(
          std::make_unique<Runtime>(config, TopologyOf(rank, hosts), fabric_->Endpoint(rank)));
    }
  }

  // Runs the body once for each rank, in threads, and waits for all.
  void Run(const Body& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&body, rank, this] { body(rank, runtime(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int size() const { return static_cast<int>(runtimes_.size()); }
  Runtime& runtime(int rank) { return *runtimes_[static_cast<size_t>(rank)]; }
  InprocFabric& fabric() { return *fabric_; }

 private:
  std::shared_ptr<InprocFabric> fabric_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

// An allreduce (Sum, float32) of the vector in place.
inline OperationPtr Allreduce(std::vector<float>& data, const std::string& name = "",
                              int process_set = 0) {
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = process_set;
  operation->request.name = name;
  const auto count = static_cast<int64_t>(data.size());
  operation->request.signature.tensors = {{DataType::kFloat32, {count}}};
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  operation->tensors = {{bytes, bytes, count, static_cast<int64_t>(sizeof(float))}};
  return operation;
}

inline OperationPtr Barrier(const std::string& name = "", int process_set = 0) {
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = process_set;
  operation->request.name = name;
  operation->request.signature.kind = OpKind::kBarrier;
  return operation;
}

inline OperationPtr Join() {
  auto operation = std::make_shared<Operation>();
  operation->request.signature.kind = OpKind::kJoin;
  return operation;
}

inline OperationPtr AddSet(std::vector<int> ranks) {
  auto operation = std::make_shared<Operation>();
  operation->request.name = "registration";
  operation->request.signature.kind = OpKind::kAddProcessSet;
  operation->request.signature.ranks = std::move(ranks);
  return operation;
}

inline OperationPtr RemoveSet(int id) {
  auto operation = std::make_shared<Operation>();
  operation->request.name = "registration";
  operation->request.signature.kind = OpKind::kRemoveProcessSet;
  operation->request.signature.target_set = id;
  return operation;
}

// A message of bytes.
inline OperationPtr MessageOf(bool is_send, std::span<std::byte> memory, int peer, int64_t tag,
                              int process_set = 0) {
  auto operation = std::make_shared<Operation>();
  operation->process_set_id = process_set;
  operation->message = std::make_unique<Message>();
  *operation->message = {is_send, peer, {tag, 0, DataType::kUint8, memory.size()}, memory.data()};
  return operation;
}

inline OperationPtr SendOf(std::span<std::byte> memory, int peer, int64_t tag = 0,
                           int process_set = 0) {
  return MessageOf(true, memory, peer, tag, process_set);
}

inline OperationPtr RecvOf(std::span<std::byte> memory, int peer, int64_t tag = 0,
                           int process_set = 0) {
  return MessageOf(false, memory, peer, tag, process_set);
}

inline OperationPtr Enqueued(Runtime& runtime, OperationPtr operation) {
  const Status status = runtime.Enqueue(operation, false);
  EXPECT_TRUE(status.ok()) << status.message();
  return operation;
}

// Enqueues and waits.
inline Status Call(Runtime& runtime, const OperationPtr& operation) {
  if (Status status = runtime.Enqueue(operation, true); !status.ok()) return status;
  return runtime.Wait(operation, kDeadlineSeconds);
}

}  // namespace horoscale::testing
