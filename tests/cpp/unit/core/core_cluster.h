// A coordinator and its members without links, for unit tests of the protocol.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/coordinator.h"
#include "core/member.h"

namespace horoscale {

inline Signature Allreduce(std::vector<int64_t> shape, DataType dtype = DataType::kFloat32) {
  Signature signature;
  signature.tensors.push_back({dtype, std::move(shape)});
  return signature;
}

inline Request Named(std::string name, Signature signature, int priority = 0) {
  return {.name = std::move(name), .index = 0, .priority = priority, .signature = signature};
}

inline Request Join() {
  Request request;
  request.signature.kind = OpKind::kJoin;
  return request;
}

class CoreCluster {
 public:
  explicit CoreCluster(CoordinatorOptions options) : coordinator_(options) {
    for (uint32_t i = 0; i < options.ranks.size(); ++i) {
      members_.push_back(std::make_unique<Member>(options.process_set_id, i,
                                                  static_cast<uint32_t>(options.ranks.size()),
                                                  options.cache_capacity));
    }
  }

  // Ranks 10, 20, 30, … so that they can't be confused with member indices.
  static CoordinatorOptions Options(uint32_t size) {
    CoordinatorOptions options;
    for (uint32_t i = 1; i <= size; ++i) options.ranks.push_back(static_cast<int>(10 * i));
    return options;
  }

  Member& member(uint32_t index) { return *members_[index]; }
  Coordinator& coordinator() { return coordinator_; }
  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }

  Token Submit(uint32_t member, const Request& request) {
    const Token token = next_token_++;
    EXPECT_TRUE(members_[member]->Submit(request, token).ok());
    return token;
  }
  void SubmitAll(const Request& request) {
    for (uint32_t i = 0; i < size(); ++i) Submit(i, request);
  }

  // Delivers a member's current report to the coordinator.
  Report Deliver(uint32_t member) {
    const std::optional<Report> report = members_[member]->TakeReport();
    if (!report) return {};
    const Status status = coordinator_.OnReport(member, *report, now);
    EXPECT_TRUE(status.ok()) << status.message();
    return *report;
  }
  void DeliverAll() {
    for (uint32_t i = 0; i < size(); ++i) Deliver(i);
  }

  // Applies the entry on all members; returns the action of member 0.
  Action Apply(const PlanEntry& entry) {
    Action first;
    for (uint32_t i = 0; i < size(); ++i) {
      Result<Action> action = members_[i]->Apply(entry);
      EXPECT_TRUE(action.ok()) << action.status().message();
      if (i == 0 && action.ok()) first = action.TakeValue();
    }
    coordinator_.OnExecuted(entry.sequence);
    return first;
  }

  // Runs until nothing is left to do; returns the actions of member 0.
  std::vector<Action> Run() {
    std::vector<Action> actions;
    for (;;) {
      DeliverAll();
      plan = coordinator_.TakePlan(now);
      if (plan.empty()) return actions;
      for (const PlanEntry& entry : plan) actions.push_back(Apply(entry));
    }
  }

  double now = 0;
  std::vector<PlanEntry> plan;  // of the last TakePlan() in Run()

 private:
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Member>> members_;
  Token next_token_ = 1;
};

}  // namespace horoscale
