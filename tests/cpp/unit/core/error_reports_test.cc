#include "core/error_reports.h"

#include <gtest/gtest.h>

#include <limits>

namespace horoscale {
namespace {

constexpr Encoding kInt8{EncodingKind::kInt8};
constexpr Encoding kInt4{EncodingKind::kInt4};
using Errors = std::vector<EncodingError>;

TEST(ErrorReportsTest, OnlyChangesAreTold) {
  ErrorReports reports;
  reports.Note(3, kInt8, 0.006);
  reports.Note(1, kInt8, 0.01);
  EXPECT_EQ(reports.Take(), (Errors{{1, kInt8, 100}, {3, kInt8, 60}}));
  reports.Note(3, kInt8, 0.0061);
  reports.Note(1, kInt8, 0.02);
  EXPECT_EQ(reports.Take(), (Errors{{1, kInt8, 200}}));
  reports.Note(1, kInt4, 0.02);
  EXPECT_EQ(reports.Take(), (Errors{{1, kInt4, 200}}));
  EXPECT_EQ(reports.Take(), Errors{});
}

TEST(ErrorReportsTest, TheLastOneCounts) {
  ErrorReports reports;
  reports.Note(1, kInt8, 0.01);
  (void)reports.Take();
  reports.Note(1, kInt8, 0.05);
  reports.Note(1, kInt8, 0.01);
  EXPECT_EQ(reports.Take(), Errors{});
}

TEST(ErrorReportsTest, ASlotThatStandsForSomethingElseIsNew) {
  ErrorReports reports;
  reports.Note(1, kInt8, 0.01);
  (void)reports.Take();
  reports.Note(2, kInt8, 0.01);
  reports.Forget(1);
  reports.Forget(2);
  EXPECT_EQ(reports.Take(), Errors{});
  reports.Note(1, kInt8, 0.01);
  EXPECT_EQ(reports.Take(), (Errors{{1, kInt8, 100}}));
}

TEST(ErrorReportsTest, WhatIsNoErrorIsNotTold) {
  ErrorReports reports;
  reports.Note(1, kInt8, std::numeric_limits<double>::quiet_NaN());
  reports.Note(1, kInt8, std::numeric_limits<double>::infinity());
  EXPECT_EQ(reports.Take(), Errors{});
}

}  // namespace
}  // namespace horoscale
