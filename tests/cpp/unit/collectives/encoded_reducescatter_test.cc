// Reducescatter with encoded sums: no permanent loss, and the same bits however tensors are fused.
#include "collectives/encoded_reducescatter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "collectives/encoded_fold.h"
#include "collectives/residuals.h"
#include "support/encoded_cases.h"
#include "support/fickle_exchange.h"

namespace horoscale {
namespace {

using testing::FickleHub;
using testing::Floats;
using testing::Hosts;
using testing::kHostLayouts;
using testing::kLossyEncodings;
using testing::StepPatiently;

struct Shape {
  int64_t rows = 0;
  int64_t row_elements = 0;
  size_t elements() const { return static_cast<size_t>(rows * row_elements); }
};
const std::vector<Shape> kTensors = {{7, 300}, {0, 10}, {64, 64}, {2, 5000}, {1, 70}, {5, 1024}};

// Some tensors on each member of a job, the rows that members get of them, and their residuals.
class ScatteredWorld {
 public:
  ScatteredWorld(const Hosts& hosts, std::vector<Shape> tensors, uint64_t seed = 1)
      : hub_({.members = static_cast<uint32_t>(hosts.size()), .seed = seed, .hosts = hosts}),
        tensors_(std::move(tensors)),
        random_(seed) {
    for (uint32_t m = 0; m < hub_.size(); ++m) {
      in_.emplace_back();
      for (const Shape& tensor : tensors_) in_[m].emplace_back(tensor.elements());
      residuals_.emplace_back(tensors_.size());
    }
    results_ = in_[0];
  }

  FickleHub& hub() { return hub_; }
  std::vector<Floats>& in(uint32_t member) { return in_[member]; }
  // By tensor, the rows of all members.
  const std::vector<Floats>& results() const { return results_; }
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

  // Reduces these tensors in one bucket. In place: the results also take the place of the own rows.
  void Reduce(const Encoding& encoding, const std::vector<size_t>& bucket,
              const Reduction& reduction = {}, bool in_place = false) {
    std::vector<std::unique_ptr<Collective>> running;
    for (uint32_t m = 0; m < hub_.size(); ++m) {
      ReducescatterArgs args = {.reduction = reduction,
                                .items = {},
                                .encoding = encoding,
                                .splits = splits,
                                .positions = positions};
      args.totals = &totals;
      for (const size_t tensor : bucket) {
        ReducescatterItem item = {.rows = tensors_[tensor].rows,
                                  .row_bytes = 4 * tensors_[tensor].row_elements};
        const int64_t first = args.RowsFor(item, hub_.size(), m).first * item.row_bytes;
        item.in = reinterpret_cast<const std::byte*>(in_[m][tensor].data());
        item.out =
            reinterpret_cast<std::byte*>((in_place ? in_[m] : results_)[tensor].data()) + first;
        args.items.push_back(item);
        args.parts.push_back({.residuals = &residuals_[m][tensor]});
      }
      running.push_back(MakeReducescatter(hub_.member(m), std::move(args)));
    }
    StepPatiently(running);
  }

  // A member's elements of a tensor.
  RowRange ElementsOf(size_t tensor, uint32_t member) const {
    const ReducescatterArgs args = {
        .reduction = {}, .items = {}, .splits = splits, .positions = positions};
    const int64_t row = tensors_[tensor].row_elements;
    const RowRange rows = args.RowsFor({.rows = tensors_[tensor].rows}, hub_.size(), member);
    return {rows.first * row, rows.count * row};
  }

  // All members' residuals for the elements of a tensor.
  std::vector<double> Left(size_t tensor) {
    std::vector<uint32_t> everybody;
    for (uint32_t m = 0; m < hub_.size(); ++m) everybody.push_back(m);
    const HostGroups hosts(hub_.member(0), everybody);
    std::vector<double> left(tensors_[tensor].elements());
    for (const uint32_t m : everybody) {
      size_t kept = 0;
      for (const uint32_t owner : everybody) {
        const uint32_t host = hosts.HostOf(m);
        if (hosts.HostOf(owner) == host || hosts.RepresentativeOf(owner, host) != m) continue;
        const RowRange elements = ElementsOf(tensor, owner);
        for (int64_t i = 0; i < elements.count; ++i) {
          left[static_cast<size_t>(elements.first + i)] +=
              double{residuals_[m][tensor].sums.at(kept++)};
        }
      }
      EXPECT_EQ(kept, residuals_[m][tensor].sums.size());
    }
    return left;
  }

  std::vector<int64_t> splits;
  std::vector<uint32_t> positions;
  EncodingTotals totals;

 private:
  FickleHub hub_;
  const std::vector<Shape> tensors_;
  std::mt19937_64 random_;
  std::vector<std::vector<Floats>> in_;  // by member and tensor
  std::vector<Floats> results_;
  std::vector<std::vector<TensorResiduals>> residuals_;
};

void ExpectNoLoss(ScatteredWorld& world, const std::vector<std::vector<size_t>>& buckets,
                  const std::vector<Shape>& tensors, const Encoding& encoding) {
  std::vector<std::vector<double>> sent;
  for (const Shape& tensor : tensors) sent.emplace_back(tensor.elements());
  std::vector<std::vector<double>> delivered = sent;
  for (int step = 0; step < 5; ++step) {
    world.NewGradients();
    for (const std::vector<size_t>& bucket : buckets) world.Reduce(encoding, bucket);
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t i = 0; i < sent[t].size(); ++i) {
        for (uint32_t m = 0; m < world.hub().size(); ++m) sent[t][i] += double{world.in(m)[t][i]};
        delivered[t][i] += double{world.results()[t][i]};
      }
    }
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<double> left = world.Left(t);
    for (size_t i = 0; i < sent[t].size(); ++i) {
      ASSERT_NEAR(delivered[t][i] + left[i], sent[t][i], 1e-4)
          << Name(encoding) << " tensor " << t << " element " << i;
    }
  }
}

TEST(EncodedReducescatterTest, WhatIsDeliveredAndWhatIsLeftIsWhatWasSent) {
  for (const Hosts& hosts : kHostLayouts) {
    for (const Encoding& encoding : kLossyEncodings) {
      ScatteredWorld world(hosts, kTensors, 7 + hosts.size());
      ExpectNoLoss(world, {{3, 0, 1}, {2, 4, 5}}, kTensors, encoding);
    }
  }
}

TEST(EncodedReducescatterTest, RowsMayBeDividedUnevenlyAndInAnotherOrder) {
  const std::vector<Shape> tensors = {{10, 300}, {10, 1024}};
  for (const Encoding& encoding : kLossyEncodings) {
    ScatteredWorld world({0, 1, 0, 1, 2}, tensors, 5);
    world.splits = {3, 0, 6, 1, 0};
    world.positions = {4, 2, 0, 1, 3};
    ExpectNoLoss(world, {{0, 1}}, tensors, encoding);
  }
}

TEST(EncodedReducescatterTest, BitsDontDependOnWhatIsFused) {
  for (const Hosts& hosts : kHostLayouts) {
    for (const Encoding& encoding : kLossyEncodings) {
      ScatteredWorld fused(hosts, kTensors, 3);
      ScatteredWorld single(hosts, kTensors, 4);
      for (int step = 0; step < 3; ++step) {
        fused.NewGradients();
        for (uint32_t m = 0; m < hosts.size(); ++m) single.in(m) = fused.in(m);
        fused.Reduce(encoding, {5, 4, 3, 2, 1, 0});
        for (size_t t = 0; t < kTensors.size(); ++t) single.Reduce(encoding, {t}, {}, true);
        for (size_t t = 0; t < kTensors.size(); ++t) {
          for (uint32_t m = 0; m < hosts.size(); ++m) {
            const RowRange own = single.ElementsOf(t, m);
            for (int64_t i = own.first; i < own.first + own.count; ++i) {
              const auto at = static_cast<size_t>(i);
              ASSERT_EQ(single.in(m)[t][at], fused.results()[t][at]) << Name(encoding);
            }
          }
        }
      }
    }
  }
}

TEST(EncodedReducescatterTest, AveragesAreDividedScaledAndRoundedOnce) {
  for (const Hosts& hosts : kHostLayouts) {
    const auto count = static_cast<int64_t>(hosts.size());
    ScatteredWorld world(hosts, {{3000, 1}});
    world.NewGradients();
    world.Reduce({EncodingKind::kInt8}, {0},
                 {.op = ReduceOp::kAverage, .prescale = 0.5, .postscale = 4.0, .divisor = count});
    for (size_t i = 0; i < 3000; ++i) {
      double sum = 0;
      for (uint32_t m = 0; m < hosts.size(); ++m) sum += double{world.in(m)[0][i]};
      ASSERT_NEAR(double{world.results()[0][i]}, 2 * sum / static_cast<double>(count), 0.2);
    }
  }
}

TEST(EncodedReducescatterTest, HalfTypesAreEncodedFromFloat32) {
  FickleHub hub({.members = 4, .hosts = {0, 0, 1, 1}});
  const std::vector<uint16_t> ones(5000, 0x3f80);  // bfloat16
  std::vector<std::vector<uint16_t>> out(4, std::vector<uint16_t>(1250));
  std::vector<std::unique_ptr<Collective>> running;
  for (uint32_t m = 0; m < 4; ++m) {
    running.push_back(MakeReducescatter(
        hub.member(m), {.reduction = {.dtype = DataType::kBfloat16},
                        .items = {{reinterpret_cast<const std::byte*>(ones.data()),
                                   reinterpret_cast<std::byte*>(out[m].data()), 5000, 2}},
                        .encoding = {EncodingKind::kInt8}}));
  }
  StepPatiently(running);
  for (const std::vector<uint16_t>& rows : out) {
    for (const uint16_t value : rows) EXPECT_NEAR(value, 0x4080, 1);  // 4
  }
}

TEST(EncodedReducescatterTest, WhatLeavesAHostIsSmall) {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 1, 1, 2, 2}}) {
    const std::vector<Shape> tensors = {{60, 1024}};
    ScatteredWorld encoded(hosts, tensors);
    encoded.NewGradients();
    encoded.Reduce({EncodingKind::kInt8}, {0});
    ScatteredWorld plain(hosts, tensors);
    plain.Reduce({}, {0});
    for (uint32_t host = 0; host <= hosts.back(); ++host) {
      EXPECT_LE(static_cast<double>(encoded.hub().bytes_sent_by(host)),
                1.02 * 66 / 256 * static_cast<double>(plain.hub().bytes_sent_by(host)));
    }
    EXPECT_GT(encoded.totals.error_squares, 0);
    EXPECT_LT(encoded.totals.error_squares, encoded.totals.squares);
    EXPECT_EQ(plain.totals.calls, 0u);
  }
}

TEST(EncodedReducescatterTest, WhatIsNotFiniteArrivesAndLeavesResidualsAlone) {
  for (const Encoding& encoding : kLossyEncodings) {
    ScatteredWorld world({0, 1}, {{2, 4096}});
    world.NewGradients();
    world.Reduce(encoding, {0});
    const Floats before = world.residuals(0, 0).sums;
    world.in(0)[0][4096 + 100] = std::numeric_limits<float>::infinity();
    world.Reduce(encoding, {0});
    EXPECT_FALSE(std::isfinite(world.results()[0][4096 + 100]));
    const Floats& after = world.residuals(0, 0).sums;
    for (size_t i = 64; i < 128; ++i) ASSERT_EQ(after[i], before[i]) << Name(encoding);
  }
}

TEST(EncodedReducescatterTest, OtherOperatorsAndOneHostTravelAsTheyAre) {
  ScatteredWorld hosts({0, 1}, {{1000, 1}});
  hosts.NewGradients();
  hosts.Reduce({EncodingKind::kOneBit}, {0}, {.op = ReduceOp::kMax});
  EXPECT_EQ(hosts.totals.calls, 0u);
  for (size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(hosts.results()[0][i], std::max(hosts.in(0)[0][i], hosts.in(1)[0][i]));
  }
  ScatteredWorld alone({0, 0}, {{1000, 1}});
  alone.NewGradients();
  alone.Reduce({EncodingKind::kOneBit}, {0});
  EXPECT_EQ(alone.totals.calls, 0u);
  for (size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(alone.results()[0][i], alone.in(0)[0][i] + alone.in(1)[0][i]);
  }
}

TEST(EncodedReducescatterTest, AnotherDivisionForgetsResiduals) {
  TensorResiduals residuals;
  residuals.PrepareShares({10, 20, 30}, 1024, 50);
  residuals.sums.assign(50, 1.0f);
  residuals.PrepareShares({10, 20, 30}, 1024, 50);
  EXPECT_EQ(residuals.sums, Floats(50, 1.0f));
  EXPECT_EQ(residuals.elements, 60);
  residuals.PrepareShares({20, 10, 30}, 1024, 50);
  EXPECT_EQ(residuals.sums, Floats(50));
  residuals.sums.assign(50, 1.0f);
  residuals.Prepare({1, 2, 1024}, 0, 60);  // an allreduce of that name
  EXPECT_EQ(residuals.sums, Floats(60));
  EXPECT_TRUE(residuals.shares.empty());
}

}  // namespace
}  // namespace horoscale
