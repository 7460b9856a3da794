// Allreduce with encoded sums: the same bits on all members, and no permanent loss, however tensors
// are split and fused.
#include "collectives/encoded_allreduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "collectives/encoding.h"
#include "collectives/residuals.h"
#include "support/encoded_cases.h"
#include "support/fickle_exchange.h"
#include "support/random_values.h"
#include "support/reference_fold.h"

namespace horoscale {
namespace {

using testing::FickleHub;
using testing::Floats;
using testing::Hosts;
using testing::kHostLayouts;
using testing::kLossyEncodings;
using testing::StepPatiently;

struct Piece {
  size_t tensor = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// Some tensors on each member of a job, and their residuals.
class World {
 public:
  World(const Hosts& hosts, std::vector<int64_t> sizes, uint64_t seed = 1)
      : hub_({.members = static_cast<uint32_t>(hosts.size()), .seed = seed, .hosts = hosts}),
        sizes_(std::move(sizes)),
        random_(seed) {
    for (uint32_t m = 0; m < hub_.size(); ++m) {
      in_.emplace_back();
      for (int64_t size : sizes_) in_[m].emplace_back(static_cast<size_t>(size));
      residuals_.emplace_back(sizes_.size());
    }
    out_ = in_;
  }

  FickleHub& hub() { return hub_; }
  std::mt19937_64& random() { return random_; }
  std::vector<Floats>& in(uint32_t member) { return in_[member]; }
  const std::vector<Floats>& out(uint32_t member) const { return out_[member]; }
  const TensorResiduals& residuals(uint32_t member, size_t tensor) const {
    return residuals_[member][tensor];
  }

  void NewGradients() {
    std::normal_distribution<float> normal;
    for (std::vector<Floats>& tensors : in_) {
      for (Floats& tensor : tensors) {
        for (float& value : tensor) value = normal(random_);
      }
    }
  }

  // Every tensor in one piece, in order.
  std::vector<Piece> Whole() const {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < sizes_.size(); ++i) pieces.push_back({i, 0, sizes_[i]});
    return pieces;
  }
  // Split at random multiples of `step`, and shuffled.
  std::vector<Piece> Cut(int64_t step) {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      for (int64_t at = 0; at < sizes_[i];) {
        const int64_t steps = 1 + static_cast<int64_t>(random_() % 5);
        const int64_t count = std::min(steps * step, sizes_[i] - at);
        pieces.push_back({i, at, count});
        at += count;
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random_);
    return pieces;
  }

  // Reduces these pieces in `buckets` buckets.
  void Reduce(const Encoding& encoding, const std::vector<Piece>& pieces, size_t buckets = 1,
              const Reduction& reduction = {}, const std::vector<uint32_t>& absent = {}) {
    for (size_t b = 0; b < buckets; ++b) {
      const auto part = [&](size_t i) { return pieces.begin() + static_cast<ptrdiff_t>(i); };
      const std::vector<Piece> bucket(part(pieces.size() * b / buckets),
                                      part(pieces.size() * (b + 1) / buckets));
      std::vector<std::unique_ptr<Collective>> running;
      for (uint32_t m = 0; m < hub_.size(); ++m) {
        AllreduceArgs args = Args(m, bucket);
        args.reduction = reduction;
        args.encoding = encoding;
        args.absent = absent;
        args.totals = &totals;
        running.push_back(MakeAllreduce(hub_.member(m), std::move(args)));
      }
      StepPatiently(running);
    }
  }

  // The sum of all members' residuals for an element.
  double Left(const HostGroups& hosts, size_t tensor, int64_t element) const {
    double left = 0;
    for (uint32_t m = 0; m < hub_.size(); ++m) {
      const TensorResiduals& kept = residuals_[m][tensor];
      const int64_t unit = element / kept.places.elements;
      const int64_t within = element % kept.places.elements;
      const UnitPlaces::Place place = kept.places.Of(unit, static_cast<uint32_t>(tensor));
      if (place.lane != hosts.PositionOf(m)) continue;
      left += At(kept.sums, place.sum * kept.places.elements + within);
      if (hosts.count() == 2 || place.host != hosts.HostOf(m)) continue;
      left += At(kept.results, place.result * kept.places.elements + within);
    }
    return left;
  }
  HostGroups Groups() { return {hub_.member(0), Everybody()}; }

  EncodingTotals totals;

 private:
  static double At(const Floats& values, int64_t i) {
    return double{values.at(static_cast<size_t>(i))};
  }

  std::vector<uint32_t> Everybody() const {
    std::vector<uint32_t> members;
    for (uint32_t m = 0; m < hub_.size(); ++m) members.push_back(m);
    return members;
  }

  AllreduceArgs Args(uint32_t m, const std::vector<Piece>& pieces) {
    AllreduceArgs args;
    for (const Piece& piece : pieces) {
      const auto first = static_cast<size_t>(piece.begin);
      args.segments.push_back(
          {reinterpret_cast<const std::byte*>(in_[m][piece.tensor].data() + first),
           reinterpret_cast<std::byte*>(out_[m][piece.tensor].data() + first), 4 * piece.count});
      args.parts.push_back({piece.begin, sizes_[piece.tensor], static_cast<uint32_t>(piece.tensor),
                            &residuals_[m][piece.tensor]});
    }
    return args;
  }

  FickleHub hub_;
  const std::vector<int64_t> sizes_;
  std::mt19937_64 random_;
  std::vector<std::vector<Floats>> in_;  // by member and tensor
  std::vector<std::vector<Floats>> out_;
  std::vector<std::vector<TensorResiduals>> residuals_;
};

const std::vector<int64_t> kSizes = {1, 1000, 1024, 5000, 70, 9 * 1024 + 3};

TEST(EncodedAllreduceTest, WhatIsDeliveredAndWhatIsLeftIsWhatWasSent) {
  for (const Hosts& hosts : kHostLayouts) {
    for (const Encoding& encoding : kLossyEncodings) {
      World world(hosts, kSizes, 7 + hosts.size());
      std::vector<std::vector<double>> sent;
      for (int64_t size : kSizes) sent.emplace_back(static_cast<size_t>(size));
      std::vector<std::vector<double>> delivered = sent;
      for (int step = 0; step < 6; ++step) {
        world.NewGradients();
        // Odd split points included: residuals must still line up.
        const int64_t cut = step % 2 == 0 ? 64 : 37;
        world.Reduce(encoding, world.Cut(cut), 1 + world.random()() % 4);
        for (size_t t = 0; t < kSizes.size(); ++t) {
          for (size_t i = 0; i < sent[t].size(); ++i) {
            for (uint32_t m = 0; m < hosts.size(); ++m) sent[t][i] += double{world.in(m)[t][i]};
            delivered[t][i] += double{world.out(0)[t][i]};
          }
        }
        for (uint32_t m = 1; m < hosts.size(); ++m) {
          ASSERT_EQ(world.out(m), world.out(0)) << Name(encoding) << " member " << m;
        }
      }
      const HostGroups groups = world.Groups();
      for (size_t t = 0; t < kSizes.size(); ++t) {
        for (size_t i = 0; i < sent[t].size(); ++i) {
          const double left = world.Left(groups, t, static_cast<int64_t>(i));
          ASSERT_NEAR(delivered[t][i] + left, sent[t][i], 1e-4)
              << Name(encoding) << " tensor " << t << " element " << i;
        }
      }
    }
  }
}

TEST(EncodedAllreduceTest, BitsDontDependOnHowTensorsAreCut) {
  for (const Hosts& hosts : kHostLayouts) {
    for (const Encoding& encoding : kLossyEncodings) {
      World whole(hosts, kSizes, 3);
      World cut(hosts, kSizes, 4);
      for (int step = 0; step < 4; ++step) {
        whole.NewGradients();
        for (uint32_t m = 0; m < hosts.size(); ++m) cut.in(m) = whole.in(m);
        whole.Reduce(encoding, whole.Whole());
        cut.Reduce(encoding, cut.Cut(1024), 3);
        ASSERT_EQ(cut.out(0), whole.out(0)) << Name(encoding) << " step " << step;
      }
    }
  }
}

TEST(EncodedAllreduceTest, AveragesAreDividedScaledAndRoundedOnce) {
  for (const Hosts& hosts : kHostLayouts) {
    World world(hosts, {3000});
    world.NewGradients();
    world.Reduce({EncodingKind::kInt8}, world.Whole(), 1,
                 {.op = ReduceOp::kAverage,
                  .prescale = 0.5,
                  .postscale = 4.0,
                  .divisor = static_cast<int64_t>(hosts.size())});
    double error = 0;
    for (size_t i = 0; i < 3000; ++i) {
      double sum = 0;
      for (uint32_t m = 0; m < hosts.size(); ++m) sum += double{world.in(m)[0][i]};
      error = std::max(error, std::abs(double{world.out(0)[0][i]} -
                                       2 * sum / static_cast<double>(hosts.size())));
    }
    EXPECT_LT(error, 0.2);
  }
}

TEST(EncodedAllreduceTest, HalfTypesAreEncodedFromFloat32) {
  for (DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
    FickleHub hub({.members = 4, .hosts = {0, 0, 1, 1}});
    std::vector<testing::Bytes> in;
    for (uint32_t m = 0; m < 4; ++m) in.push_back(testing::Bytes(5000 * 2));
    for (testing::Bytes& bytes : in) {
      for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3c};  // about 1
    }
    std::vector<testing::Bytes> out = in;
    std::vector<std::unique_ptr<Collective>> running;
    for (uint32_t m = 0; m < 4; ++m) {
      running.push_back(
          MakeAllreduce(hub.member(m), {.reduction = {.dtype = dtype},
                                        .segments = {{in[m].data(), out[m].data(), 5000 * 2}},
                                        .absent = {},
                                        .encoding = {EncodingKind::kInt8}}));
    }
    StepPatiently(running);
    for (uint32_t m = 1; m < 4; ++m) EXPECT_EQ(out[m], out[0]);
    EXPECT_EQ(out[0][1], dtype == DataType::kFloat16 ? std::byte{0x44} : std::byte{0x3d});
  }
}

TEST(EncodedAllreduceTest, WhatLeavesAHostIsSmall) {
  for (const auto& [encoding, most] : {std::pair(Encoding{EncodingKind::kInt8}, 66.0 / 256),
                                       std::pair(Encoding{EncodingKind::kInt4}, 34.0 / 256),
                                       std::pair(Encoding{EncodingKind::kOneBit}, 10.0 / 256)}) {
    for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 1, 1, 2, 2}}) {
      World encoded(hosts, {64 * 1024});
      encoded.NewGradients();
      encoded.Reduce(encoding, encoded.Whole());
      World plain(hosts, {64 * 1024});
      plain.Reduce({}, plain.Whole());
      for (uint32_t host = 0; host <= hosts.back(); ++host) {
        EXPECT_LE(static_cast<double>(encoded.hub().bytes_sent_by(host)),
                  1.02 * most * static_cast<double>(plain.hub().bytes_sent_by(host)));
      }
      EXPECT_GT(encoded.totals.calls, 0u);
      EXPECT_NEAR(static_cast<double>(encoded.totals.bytes_after),
                  most * static_cast<double>(encoded.totals.bytes_before), 1.0);
      EXPECT_GT(encoded.totals.error_squares, 0);
      EXPECT_LT(encoded.totals.error_squares, encoded.totals.squares);
      EXPECT_EQ(plain.totals.calls, 0u);
    }
  }
}

TEST(EncodedAllreduceTest, WhileSomebodyIsAbsentSumsAreExactAndResidualsWait) {
  World world({0, 0, 1, 1}, {5000});
  world.NewGradients();
  world.Reduce({EncodingKind::kInt4}, world.Whole());
  const Floats before = world.residuals(0, 0).sums;
  world.Reduce({EncodingKind::kInt4}, world.Whole(), 1, {}, {1});
  for (size_t i = 0; i < 5000; ++i) {
    const float first = world.in(0)[0][i];
    ASSERT_EQ(world.out(0)[0][i], first + (world.in(2)[0][i] + world.in(3)[0][i]));
  }
  EXPECT_EQ(world.residuals(0, 0).sums, before);
}

TEST(EncodedAllreduceTest, WhatIsNotFiniteReachesAllAndLeavesResidualsAlone) {
  for (const Encoding& encoding : kLossyEncodings) {
    World world({0, 0, 1, 1}, {4096});
    world.NewGradients();
    world.Reduce(encoding, world.Whole());
    const TensorResiduals before[] = {world.residuals(0, 0), world.residuals(1, 0)};
    world.in(0)[0][100] = std::numeric_limits<float>::infinity();
    world.Reduce(encoding, world.Whole());
    for (uint32_t m = 0; m < 4; ++m) EXPECT_FALSE(std::isfinite(world.out(m)[0][100]));
    for (uint32_t m = 0; m < 2; ++m) {
      for (float residual : world.residuals(m, 0).sums) ASSERT_TRUE(std::isfinite(residual));
    }
    const UnitPlaces& places = before[0].places;
    const UnitPlaces::Place place = places.Of(0, 0);
    const auto first = static_cast<size_t>(place.sum * places.elements);
    const TensorResiduals& after = world.residuals(place.lane, 0);
    for (size_t i = first + 64; i < first + 128; ++i) {
      ASSERT_EQ(after.sums[i], before[place.lane].sums[i]) << Name(encoding);
    }
  }
}

TEST(EncodedAllreduceTest, OtherOperatorsAndTypesTravelAsTheyAre) {
  World world({0, 1}, {1000});
  world.NewGradients();
  world.Reduce({EncodingKind::kOneBit}, world.Whole(), 1, {.op = ReduceOp::kMax});
  for (size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(world.out(0)[0][i], std::max(world.in(0)[0][i], world.in(1)[0][i]));
  }
  EXPECT_FALSE(MayEncode({.reduction = {.dtype = DataType::kFloat64},
                          .segments = {},
                          .absent = {},
                          .encoding = {EncodingKind::kInt8}}));
  EXPECT_EQ(world.totals.calls, 0u);
}

TEST(EncodedAllreduceTest, NothingIsEncodedOnOneHost) {
  FickleHub hub({.members = 2});
  Floats values[] = {Floats(5000, 1.0f), Floats(5000, 2.0f)};
  EncodingTotals totals;
  std::vector<std::unique_ptr<Collective>> running;
  for (uint32_t m = 0; m < 2; ++m) {
    auto* const bytes = reinterpret_cast<std::byte*>(values[m].data());
    running.push_back(MakeAllreduce(hub.member(m), {.reduction = {},
                                                    .segments = {{bytes, bytes, 20'000}},
                                                    .absent = {},
                                                    .encoding = {EncodingKind::kInt4},
                                                    .root = {},
                                                    .parts = {},
                                                    .totals = &totals}));
  }
  StepPatiently(running);
  EXPECT_EQ(values[0], Floats(5000, 3.0f));
  EXPECT_EQ(totals.calls, 0u);
}

TEST(TensorResidualsTest, AnotherDivisionForgetsThem) {
  TensorResiduals residuals;
  residuals.Prepare({2, 2, 1024}, 3, 10'000);
  residuals.sums.assign(residuals.sums.size(), 1.0f);
  residuals.Scale(0.5f);
  residuals.Prepare({2, 2, 1024}, 3, 10'000);
  EXPECT_EQ(residuals.sums, Floats(residuals.sums.size(), 0.5f));
  EXPECT_TRUE(residuals.results.empty());
  residuals.Prepare({2, 3, 1024}, 3, 10'000);
  EXPECT_EQ(residuals.sums, Floats(residuals.sums.size()));
  EXPECT_FALSE(residuals.results.empty());
}

TEST(UnitPlacesTest, EveryUnitHasItsPlaceAndNoOtherHasIt) {
  for (uint32_t lanes : {1u, 2u, 5u}) {
    for (uint32_t hosts : {2u, 3u, 4u}) {
      const UnitPlaces places{lanes, hosts, 4096};
      for (uint32_t home : {0u, 1u, 7u, 4'000'000'000u}) {
        std::vector<std::vector<int64_t>> sums(lanes);
        for (int64_t unit = 0; unit < 50; ++unit) {
          const UnitPlaces::Place place = places.Of(unit, home);
          ASSERT_LT(place.lane, lanes);
          ASSERT_LT(place.host, hosts);
          ASSERT_LE(place.sum, unit);
          ASSERT_LE(place.result, unit);
          ASSERT_TRUE(sums[place.lane].empty() || sums[place.lane].back() < place.sum);
          sums[place.lane].push_back(place.sum);
        }
      }
    }
  }
}

}  // namespace
}  // namespace horoscale
