// The time of collectives over the inproc transport, with ranks as threads: algorithms and exchange
// without control plane, runtime and processes.
//
//     exchange_bench [members] [chunk KiB]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "transport/inproc/inproc_fabric.h"

namespace horoscale {
namespace {

class NoFrames : public TransportSink {
  void OnFrame(int, const FrameHeader&, std::span<const std::byte>) override {}
  void OnRankLost(int, const Status&) override {}
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Finish(Collective& collective) {
  for (int idle = 0;;) {
    const Result<Progress> progress = collective.Step();
    if (!progress.ok()) {
      std::fprintf(stderr, "%s\n", progress.status().message().c_str());
      std::exit(1);
    }
    if (*progress == Progress::kDone) return;
    idle = *progress == Progress::kIdle ? idle + 1 : 0;
    if (idle > 50) std::this_thread::yield();
  }
}

struct Member {
  Exchange& exchange;
  std::vector<std::byte> in;
  std::vector<std::byte> out;
};

using Make = std::unique_ptr<Collective> (*)(Member& member, int64_t bytes);

std::unique_ptr<Collective> AverageInPlace(Member& member, int64_t bytes) {
  const int64_t members = member.exchange.size();
  return MakeAllreduce(member.exchange,
                       {.reduction = {.op = ReduceOp::kAverage, .divisor = members},
                        .segments = {{member.in.data(), member.in.data(), bytes}},
                        .absent = {}});
}

std::unique_ptr<Collective> AverageHalves(Member& member, int64_t bytes) {
  const int64_t members = member.exchange.size();
  return MakeAllreduce(
      member.exchange,
      {.reduction = {.dtype = DataType::kBfloat16, .op = ReduceOp::kAverage, .divisor = members},
       .segments = {{member.in.data(), member.in.data(), bytes}},
       .absent = {}});
}

std::unique_ptr<Collective> SumRows(Member& member, int64_t bytes) {
  return MakeReducescatter(
      member.exchange,
      {.reduction = {}, .items = {{member.in.data(), member.out.data(), bytes / 64, 64}}});
}

std::unique_ptr<Collective> SendFromFirst(Member& member, int64_t bytes) {
  return MakeBroadcast(
      member.exchange,
      {.root = 0, .segments = {{member.in.data(), member.in.data(), bytes}}, .absent = {}});
}

// The slowest member's time per operation, in seconds.
double Measure(std::vector<Member>& members, Make make, int64_t bytes, int repeats) {
  std::barrier start(static_cast<std::ptrdiff_t>(members.size()));
  std::vector<double> seconds(members.size());
  std::vector<std::thread> threads;
  for (size_t m = 0; m < members.size(); ++m) {
    threads.emplace_back([&, m] {
      start.arrive_and_wait();
      const double begin = Now();
      for (int i = 0; i < repeats; ++i) Finish(*make(members[m], bytes));
      seconds[m] = (Now() - begin) / repeats;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

double Copy(std::vector<Member>& members, int64_t bytes, int repeats) {
  const double begin = Now();
  for (int i = 0; i < repeats; ++i) {
    std::memcpy(members[0].out.data(), members[0].in.data(), static_cast<size_t>(bytes));
  }
  return (Now() - begin) / repeats;
}

int Main(int members, size_t chunk_bytes) {
  constexpr int64_t kLargest = 64 << 20;
  auto fabric = InprocFabric::Create(members, {.banks = {.chunk_bytes = chunk_bytes}}).TakeValue();
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<int> ranks;
  for (int r = 0; r < members; ++r) ranks.push_back(r);
  for (int r : ranks) transports.push_back(fabric->Endpoint(r));
  for (const auto& transport : transports) {
    exchanges.push_back(transport->Open({}, ranks).TakeValue());
  }
  NoFrames sink;
  for (const auto& exchange : exchanges) {
    while (exchange->Reserve(0) == nullptr) {
      for (const auto& transport : transports) transport->Poll(sink);
    }
  }
  std::vector<Member> set;
  for (const auto& exchange : exchanges) {
    set.push_back({*exchange, std::vector<std::byte>(kLargest), std::vector<std::byte>(kLargest)});
  }

  const struct {
    const char* name;
    Make make;
  } operations[] = {{"float32 average", AverageInPlace},
                    {"bfloat16 average", AverageHalves},
                    {"reducescatter", SumRows},
                    {"broadcast", SendFromFirst}};
  std::printf("%d members, chunks of %zu KiB; best of 5, microseconds\n%10s%12s", members,
              chunk_bytes >> 10, "bytes", "memcpy");
  for (const auto& operation : operations) std::printf("%18s", operation.name);
  for (int64_t bytes = 1 << 10; bytes <= kLargest; bytes *= 4) {
    const int repeats = static_cast<int>(std::clamp<int64_t>((32 << 20) / bytes, 1, 2000));
    double copy = 1e9;
    for (int round = 0; round < 5; ++round) copy = std::min(copy, Copy(set, bytes, repeats));
    std::printf("\n%10lld%12.2f", static_cast<long long>(bytes), copy * 1e6);
    for (const auto& operation : operations) {
      double best = 1e9;
      for (int round = 0; round < 5; ++round) {
        best = std::min(best, Measure(set, operation.make, bytes, repeats));
      }
      std::printf("%18.2f", best * 1e6);
    }
  }
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace horoscale

int main(int argc, char** argv) {
  const int members = argc > 1 ? std::atoi(argv[1]) : 2;
  const int chunk_kib = argc > 2 ? std::atoi(argv[2]) : 256;
  return horoscale::Main(members, static_cast<size_t>(chunk_kib) << 10);
}
