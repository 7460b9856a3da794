// Collectives of members on several hosts: their bits, and the bytes sent between hosts.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collectives/fold.h"
#include "collectives/host_groups.h"
#include "collectives/pipeline.h"
#include "support/collective_cases.h"
#include "support/fickle_exchange.h"
#include "support/run_interleaved.h"

namespace horoscale {
namespace {

using Hosts = std::vector<uint32_t>;
using testing::CollectiveCase;
using testing::FickleHub;
using testing::FickleOptions;
using testing::MakeAllreduceCase;
using testing::RunInterleaved;

// The number of members on host 0, 1, 2, …
Hosts InARow(const std::vector<uint32_t>& counts) {
  Hosts hosts;
  for (uint32_t host = 0; host < counts.size(); ++host)
    hosts.insert(hosts.end(), counts[host], host);
  return hosts;
}

const std::vector<Hosts>& Shapes() {
  static const std::vector<Hosts> shapes = {
      InARow({1, 1}),        InARow({2, 2}),       InARow({3, 1}),
      InARow({4, 4}),        InARow({2, 2, 2, 2}), InARow({1, 1, 1, 1, 1, 1, 1, 1}),
      InARow({5, 2, 1}),     InARow({1, 1, 3}),    {0, 1, 0, 1},
      {0, 1, 2, 2, 1, 0, 2}, {0, 1, 1, 0, 2, 1}};
  return shapes;
}

uint32_t Members(const Hosts& hosts) { return static_cast<uint32_t>(hosts.size()); }
uint32_t Count(const Hosts& hosts) { return *std::max_element(hosts.begin(), hosts.end()) + 1; }

FickleHub MakeHub(const Hosts& hosts, uint64_t seed = 1, double refusals = 0.3) {
  return FickleHub({.members = Members(hosts), .seed = seed, .refusals = refusals, .hosts = hosts});
}

TEST(HostGroupsTest, HostsWithoutParticipantsDontCount) {
  FickleHub hub = MakeHub({0, 1, 0, 2, 1, 2, 2});
  const HostGroups hosts(hub.member(0), std::vector<uint32_t>{1, 3, 4, 6});
  ASSERT_EQ(hosts.count(), 2u);
  EXPECT_EQ(hosts.members(0), (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(hosts.members(1), (std::vector<uint32_t>{3, 6}));
  EXPECT_EQ(hosts.HostOf(6), 1u);
  EXPECT_EQ(hosts.PositionOf(6), 1u);
  EXPECT_EQ(hosts.RepresentativeOf(6, 1), 6u);
  EXPECT_EQ(hosts.RepresentativeOf(6, 0), 4u);
}

TEST(PipelineTest, EveryPhaseOfEveryChunkOnceAndWithinTheBanks) {
  for (uint32_t banks : {4u, 5u, 6u, 8u, 9u}) {
    for (int64_t phases : {1, 2, 3, 4}) {
      for (int64_t chunks : {0, 1, 2, 3, 7, 50}) {
        const Pipeline pipeline(phases, chunks, banks);
        ASSERT_EQ(pipeline.rounds(), phases * chunks);
        for (int64_t round = 0; round < pipeline.rounds(); ++round) {
          const auto [phase, chunk] = pipeline.At(round);
          ASSERT_EQ(pipeline.RoundOf(phase, chunk), round);
          if (phase > 0) {
            const int64_t distance = round - pipeline.RoundOf(phase - 1, chunk);
            ASSERT_GT(distance, 0);
            ASSERT_LT(distance, int64_t{banks});
          }
          if (chunk > 0) {
            ASSERT_LT(pipeline.RoundOf(phase, chunk - 1), round);
          }
        }
      }
    }
  }
}

TEST(PipelineTest, OtherChunksPassBetweenTwoPhasesOfOne) {
  for (int64_t phases : {2, 3, 4}) {
    const Pipeline pipeline(phases, 20, 4);
    for (int64_t phase = 1; phase < phases; ++phase) {
      EXPECT_GE(pipeline.RoundOf(phase, 10) - pipeline.RoundOf(phase - 1, 10), 2) << phases;
    }
  }
}

TEST(HostsAllreduceTest, EveryReductionAtEverySizeAroundTheLimits) {
  std::mt19937_64 random(1);
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts);
    for (int dtype = 0; dtype < kNumDataTypes; ++dtype) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        const Reduction r = {.dtype = static_cast<DataType>(dtype),
                             .op = static_cast<ReduceOp>(op),
                             .prescale = dtype % 3 == 0 ? 0.7 : 1.0,
                             .postscale = dtype % 4 == 0 ? -1.9 : 1.0,
                             .divisor = Members(hosts)};
        if (!CheckReduction(r).ok()) continue;
        const auto chunk = static_cast<int64_t>(4096 / SizeOf(r.dtype));
        for (int64_t elements : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{65}, chunk - 1, chunk,
                                 chunk + 1, 9 * chunk + 5}) {
          auto operation = MakeAllreduceCase(random, {.members = Members(hosts),
                                                      .reduction = r,
                                                      .elements = elements,
                                                      .cuts = static_cast<int>(random() % 4),
                                                      .in_place = random() % 2 == 0,
                                                      .hosts = hosts});
          ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
        }
      }
    }
  }
}

TEST(HostsAllreduceTest, SumsThatTravelSmallerAreRoundedOncePerHop) {
  std::mt19937_64 random(11);
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts);
    for (DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
      for (DataType wire : {DataType::kFloat16, DataType::kBfloat16}) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
          const Reduction r = {.dtype = dtype,
                               .op = op,
                               .prescale = op == ReduceOp::kSum ? 0.7 : 1.0,
                               .postscale = op == ReduceOp::kMax ? -1.9 : 1.0,
                               .divisor = Members(hosts)};
          const auto chunk = static_cast<int64_t>(4096 / SizeOf(dtype));
          for (int64_t elements : {int64_t{1}, int64_t{7}, int64_t{65}, chunk + 1, 9 * chunk + 5}) {
            auto operation = MakeAllreduceCase(random, {.members = Members(hosts),
                                                        .reduction = r,
                                                        .elements = elements,
                                                        .cuts = static_cast<int>(random() % 4),
                                                        .in_place = random() % 2 == 0,
                                                        .hosts = hosts,
                                                        .wire = wire});
            ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
          }
        }
      }
    }
  }
}

TEST(HostsAllreduceTest, ManyChunksKeepTheBanksInOrder) {
  std::mt19937_64 random(2);
  for (uint32_t banks : {4u, 5u, 8u}) {
    for (const Hosts& hosts : Shapes()) {
      FickleHub hub({.members = Members(hosts), .banks = banks, .seed = banks, .hosts = hosts});
      auto operation = MakeAllreduceCase(
          random, {.members = Members(hosts),
                   .reduction = {.op = ReduceOp::kAverage, .divisor = Members(hosts)},
                   .elements = 100'000,
                   .cuts = 20,
                   .in_place = true,
                   .hosts = hosts});
      EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
    }
  }
}

TEST(HostsAllreduceTest, ResultsDontDependOnTheChunk) {
  // The expected result is computed without chunks, so matching it with each size is enough.
  for (size_t chunk : {size_t{4096}, size_t{12288}, size_t{1} << 20}) {
    std::mt19937_64 random(3);
    const Hosts hosts = InARow({3, 2, 2});
    FickleHub hub({.members = 7, .chunk_bytes = chunk, .hosts = hosts});
    auto operation = MakeAllreduceCase(random, {.members = 7,
                                                .reduction = {.dtype = DataType::kBfloat16},
                                                .elements = 60'000,
                                                .hosts = hosts});
    EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << "chunks of " << chunk;
  }
}

TEST(HostsAllreduceTest, HostsWhoseMembersHaveAllJoinedAreAbsent) {
  std::mt19937_64 random(4);
  const Hosts hosts = {0, 0, 1, 1, 2, 2};
  for (const std::vector<uint32_t>& absent :
       {std::vector<uint32_t>{0, 1}, {2, 3}, {1, 4, 5}, {0, 1, 4, 5}, {0, 2, 4}, {0, 1, 2, 3, 4}}) {
    for (int64_t elements : {1, 700, 20'000}) {
      for (DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt8}) {
        FickleHub hub = MakeHub(hosts);
        const Reduction reduction = {.dtype = dtype,
                                     .op = ReduceOp::kAverage,
                                     .divisor = 6 - static_cast<int64_t>(absent.size())};
        auto operation = MakeAllreduceCase(random, {.members = 6,
                                                    .reduction = reduction,
                                                    .elements = elements,
                                                    .absent = absent,
                                                    .hosts = hosts});
        EXPECT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
      }
    }
  }
}

TEST(HostsTest, AnythingInARowOnOneExchange) {
  for (const Hosts& hosts : Shapes()) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      std::mt19937_64 random(seed);
      FickleHub hub({.members = Members(hosts),
                     .chunk_bytes = seed % 2 == 0 ? size_t{4096} : size_t{12288},
                     .banks = seed % 3 == 0 ? 6u : 4u,
                     .seed = seed,
                     .refusals = seed % 3 == 1 ? 0.0 : 0.5,
                     .hosts = hosts});
      for (int i = 0; i < 30; ++i) {
        auto operation = testing::MakeRandomCase(random, Members(hosts), 40'000, hosts);
        ASSERT_EQ(RunInterleaved(random, hub, *operation), "")
            << "seed " << seed << ", operation " << i << ": " << operation->Describe();
      }
    }
  }
}

// The bytes that a host sends and receives to reduce `bytes` bytes per member, if chunks are whole
// cache lines: each host folds a part and sends its result to the others.
TEST(HostsAllreduceTest, EachByteOfAGradientLeavesAHostOnce) {
  std::mt19937_64 random(5);
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    const int64_t h = Count(hosts);
    // Divides evenly among lanes and hosts: whole lines for 1, 2, 3, 4 lanes and 2, 3, 4, 8 hosts.
    const int64_t bytes = int64_t{64} * 3 * 64 * 20;
    auto operation = MakeAllreduceCase(
        random, {.members = Members(hosts), .elements = bytes / 4, .hosts = hosts});
    ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
    int64_t sum = 0;
    for (uint32_t host = 0; host < Count(hosts); ++host) {
      // Chunks of 4096 bytes don't split evenly over 3 hosts: a line per chunk and lane.
      const int64_t slack = h % 3 == 0 ? bytes / 4096 * 64 * 4 : 0;
      EXPECT_NEAR(hub.bytes_sent_by(host), 2 * (h - 1) * bytes / h, slack) << operation->Describe();
      EXPECT_NEAR(hub.bytes_received_by(host), 2 * (h - 1) * bytes / h, slack);
      sum += hub.bytes_sent_by(host);
    }
    EXPECT_EQ(sum, 2 * (h - 1) * bytes);
  }
}

TEST(HostsAllreduceTest, HalfTheBytesTravelInATypeOfHalfTheSize) {
  std::mt19937_64 random(12);
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    int64_t sent = 0;
    for (std::optional<DataType> wire : {std::optional<DataType>(), {DataType::kBfloat16}}) {
      int64_t before = 0;
      for (uint32_t host = 0; host < Count(hosts); ++host) before += hub.bytes_sent_by(host);
      auto operation = MakeAllreduceCase(
          random,
          {.members = Members(hosts), .elements = 50'000, .cuts = 3, .hosts = hosts, .wire = wire});
      ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
      int64_t after = 0;
      for (uint32_t host = 0; host < Count(hosts); ++host) after += hub.bytes_sent_by(host);
      if (wire) {
        EXPECT_EQ(2 * (after - before), sent);
      }
      sent = after - before;
    }
  }
}

TEST(HostsAllreduceTest, SmallOnesTakeOneMessageToEachOtherHost) {
  std::mt19937_64 random(6);
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    auto operation =
        MakeAllreduceCase(random, {.members = Members(hosts), .elements = 25, .hosts = hosts});
    ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
    for (uint32_t host = 0; host < Count(hosts); ++host) {
      EXPECT_EQ(hub.bytes_sent_by(host), int64_t{100} * (Count(hosts) - 1));
      EXPECT_EQ(hub.messages_sent_by(host), Count(hosts) - 1);
    }
  }
}

TEST(HostsBroadcastTest, EachHostIsSentEachByteOnce) {
  std::mt19937_64 random(7);
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    auto operation = testing::MakeBroadcastCase(random, Members(hosts), 30'001, 3, {});
    ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
    int64_t receivers = 0;
    for (uint32_t host = 0; host < Count(hosts); ++host) {
      const int64_t received = hub.bytes_received_by(host);
      EXPECT_TRUE(received == 0 || received == 30'001) << received;
      receivers += received > 0 ? 1 : 0;
    }
    EXPECT_EQ(receivers, int64_t{Count(hosts)} - 1);  // all except the root's
  }
}

// One more hop, or more bytes: which costs more depends on the number of hosts.
TEST(HostsAllreduceTest, TheMoreHostsTheSmallerIsSmall) {
  struct Bound {
    uint32_t hosts;
    int64_t bytes;
  };
  std::mt19937_64 random(13);
  for (const auto [h, most] : {Bound{2, 16384}, {3, 16384}, {4, 10880}, {8, 3072}}) {
    Hosts hosts(h);
    std::iota(hosts.begin(), hosts.end(), 0u);
    for (const int64_t bytes : {most, most + 64}) {
      FickleHub hub({.members = h, .chunk_bytes = 1 << 16, .refusals = 0.0, .hosts = hosts});
      auto operation = MakeAllreduceCase(
          random, {.members = Members(hosts), .elements = bytes / 4, .hosts = hosts});
      ASSERT_EQ(RunInterleaved(random, hub, *operation), "") << operation->Describe();
      int64_t messages = 0;
      for (uint32_t host = 0; host < h; ++host) messages += hub.messages_sent_by(host);
      const int64_t phases = h == 2 || bytes == most ? 1 : 2;
      EXPECT_EQ(messages, phases * h * (h - 1)) << h << " hosts, " << bytes << " bytes";
    }
  }
}

// The bytes of the members on each host, with `of(m)` bytes for member m.
template <typename Of>
std::vector<int64_t> ByHost(const Hosts& hosts, Of of) {
  std::vector<int64_t> bytes(Count(hosts));
  for (uint32_t m = 0; m < hosts.size(); ++m) bytes[hosts[m]] += of(m);
  return bytes;
}

TEST(HostsAllgatherTest, RowsOfAHostCrossOnceToEachOtherHost) {
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    const uint32_t n = Members(hosts);
    std::vector<std::vector<std::byte>> in(n);
    std::vector<std::vector<AllgatherResult>> results(n);
    std::vector<std::unique_ptr<Collective>> running;
    for (uint32_t m = 0; m < n; ++m) {
      in[m].assign(6'000 + m * 1'500, static_cast<std::byte>(m));
      const auto rows = static_cast<int64_t>(in[m].size());
      running.push_back(MakeAllgather(hub.member(m), {{{in[m].data(), rows, 1}}, &results[m]}));
    }
    testing::StepAll(running);
    const auto own = ByHost(hosts, [&](uint32_t m) { return static_cast<int64_t>(in[m].size()); });
    const auto counts = ByHost(hosts, [](uint32_t) { return int64_t{8}; });
    for (uint32_t host = 0; host < Count(hosts); ++host) {
      const int64_t others = int64_t{n} - counts[host] / 8;
      EXPECT_EQ(hub.bytes_sent_by(host), own[host] * (Count(hosts) - 1) + counts[host] * others);
      EXPECT_EQ(hub.sealed_bytes_sent_by(host), counts[host] * others) << "members act on counts";
    }
  }
}

TEST(HostsReducescatterTest, OfEveryRowEachOtherHostSendsOneSum) {
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    const uint32_t n = Members(hosts);
    const int64_t rows = 1'003;
    std::vector<float> in(static_cast<size_t>(rows) * 5, 1.0f);
    std::vector<std::vector<float>> out(n, in);
    std::vector<std::unique_ptr<Collective>> running;
    for (uint32_t m = 0; m < n; ++m) {
      running.push_back(MakeReducescatter(
          hub.member(m), {{},
                          {{reinterpret_cast<const std::byte*>(in.data()),
                            reinterpret_cast<std::byte*>(out[m].data()), rows, 20}}}));
    }
    testing::StepAll(running);
    const auto own = ByHost(hosts, [&](uint32_t m) { return RowsOf(rows, n, m).count * 20; });
    for (uint32_t host = 0; host < Count(hosts); ++host) {
      EXPECT_EQ(hub.bytes_sent_by(host), rows * 20 - own[host]);
      EXPECT_EQ(hub.bytes_received_by(host), own[host] * (Count(hosts) - 1));
    }
  }
}

TEST(HostsReduceTest, EachOtherHostSendsTheRootOneSum) {
  for (const Hosts& hosts : Shapes()) {
    for (const uint32_t root : {0u, Members(hosts) - 1}) {
      FickleHub hub = MakeHub(hosts, 1, 0.0);
      std::vector<float> in(50'003, 1.0f);
      std::vector<float> out(in.size());
      const auto bytes = static_cast<int64_t>(in.size() * sizeof(float));
      std::vector<std::unique_ptr<Collective>> running;
      for (uint32_t m = 0; m < Members(hosts); ++m) {
        auto* const result = m == root ? reinterpret_cast<std::byte*>(out.data()) : nullptr;
        running.push_back(MakeReduce(
            hub.member(m),
            {.reduction = {},
             .segments = {{reinterpret_cast<const std::byte*>(in.data()), result, bytes}},
             .absent = {},
             .root = root}));
      }
      testing::StepAll(running);
      EXPECT_EQ(out, std::vector<float>(in.size(), static_cast<float>(Members(hosts))));
      for (uint32_t host = 0; host < Count(hosts); ++host) {
        EXPECT_EQ(hub.bytes_sent_by(host), host == hosts[root] ? 0 : bytes);
      }
    }
  }
}

TEST(HostsAlltoallTest, EachByteGoesStraightToItsReceiver) {
  for (const Hosts& hosts : Shapes()) {
    FickleHub hub = MakeHub(hosts, 1, 0.0);
    const uint32_t n = Members(hosts);
    const std::vector<std::byte> in(int64_t{n} * 3'000);
    std::vector<AllgatherResult> results(n);
    std::vector<std::unique_ptr<Collective>> running;
    for (uint32_t m = 0; m < n; ++m) {
      running.push_back(
          MakeAlltoall(hub.member(m), {in.data(), 3, std::vector<int64_t>(n, 1'000), &results[m]}));
    }
    testing::StepAll(running);
    const auto members = ByHost(hosts, [](uint32_t) { return int64_t{1}; });
    for (uint32_t host = 0; host < Count(hosts); ++host) {
      const int64_t pairs = members[host] * (int64_t{n} - members[host]);
      EXPECT_EQ(hub.bytes_sent_by(host), pairs * (3'000 + 16));  // plus the announcements
      EXPECT_EQ(hub.sealed_bytes_sent_by(host), pairs * 16) << "members act on announcements";
    }
  }
}

}  // namespace
}  // namespace horoscale
