// A rank that a single peer can't reach, and data that can't be delivered before the end: nobody
// may wait for what never arrives.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/codec.h"
#include "runtime/runtime.h"
#include "support/relayed_transport.h"
#include "transport/inproc/inproc_fabric.h"
#include "unit/runtime/ranks.h"

namespace horoscale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FaultyTransport final : public RelayedTransport {
 public:
  struct Faults {
    std::vector<int> undelivered;  // ranks without all data at the end
    Goodbye goodbye;               // the goodbye sent
    std::atomic<int> unreached{-1};
  };
  FaultyTransport(std::unique_ptr<Transport> inner, Faults& faults)
      : RelayedTransport(std::move(inner)), faults_(faults) {}

  void Send(int to, const FrameHeader& header, std::span<const std::byte> payload) override {
    if (to != lost_) RelayedTransport::Send(to, header, payload);
  }
  bool Poll(TransportSink& sink) override {
    const bool moved = RelayedTransport::Poll(sink);
    const int unreached = faults_.unreached.exchange(-1);
    if (unreached < 0) return moved;
    lost_ = unreached;
    sink.OnRankLost(unreached, Status(StatusCode::kTimeout, "no way", {{unreached}, -1, ""}));
    return true;
  }
  std::vector<int> AwaitLinks(double) override { return faults_.undelivered; }
  void Close(std::span<const std::byte> last_frame, double seconds) override {
    faults_.goodbye = DecodeGoodbye(last_frame).TakeValue();
    RelayedTransport::Close(last_frame, seconds);
  }

 private:
  Faults& faults_;
  int lost_ = -1;
};

// Three ranks; rank 0 has the faults.
class Unreached : public ::testing::Test {
 protected:
  Unreached() {
    fabric_ = InprocFabric::Create(3, {}, {}).TakeValue();
    const std::vector<std::string> hosts(3, "host");
    for (int rank = 0; rank < 3; ++rank) {
      std::unique_ptr<Transport> transport = fabric_->Endpoint(rank);
      if (rank == 0) transport = std::make_unique<FaultyTransport>(std::move(transport), faults_);
      runtimes_.push_back(
          std::make_unique<Runtime>(Config(), TopologyOf(rank, hosts), std::move(transport)));
    }
  }
  // The result of an allreduce of all ranks on this one.
  Status Reduce(int rank, const std::string& name) {
    std::vector<float> data(8, 1.0f);
    const OperationPtr operation = Allreduce(data, name);
    Runtime& runtime = *runtimes_[static_cast<size_t>(rank)];
    const Status queued = runtime.Enqueue(operation, true);
    return queued.ok() ? runtime.Wait(operation, kDeadlineSeconds) : queued;
  }

  FaultyTransport::Faults faults_;
  std::shared_ptr<InprocFabric> fabric_;
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

TEST_F(Unreached, WhoCanNotReachARankTellsTheOthersOfItsSets) {
  faults_.unreached = 2;
  const Status status = Reduce(1, "x");  // rank 0 neither participates nor ends
  EXPECT_EQ(status.code(), StatusCode::kRankFailed);
  EXPECT_THAT(status.message(), HasSubstr("rank 2 failed: no way"));
  EXPECT_THAT(status.detail().ranks, ElementsAre(2));
}

TEST_F(Unreached, NobodyWaitsForWhatWasNotDeliveredBeforeTheEnd) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([this, rank] { EXPECT_TRUE(Reduce(rank, "x").ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  faults_.undelivered = {2};
  runtimes_[0]->Shutdown("");
  EXPECT_TRUE(faults_.goodbye.executed.empty()) << "others would wait to get as far";
  const Status status = Reduce(1, "y");
  EXPECT_EQ(status.code(), StatusCode::kRankFailed);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 failed: it could not deliver its last data to"));
  EXPECT_THAT(status.message(), HasSubstr("rank 2"));
}

}  // namespace
}  // namespace horoscale::testing
