// Members' reports and posts, and their delivery to the coordinator and to each other.

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <utility>

#include "core/codec.h"
#include "sim/simulated_set.h"

namespace horoscale::sim {

bool SimulatedSet::SendReport(uint32_t member) {
  if (random_.Chance(posts_percent_) && SendPost(member)) return true;
  Node& node = nodes_[member];
  const std::optional<Report> report = node.member->TakeReport();
  if (!report) return false;
  const Bytes bytes = Encode(*report);
  const Result<Report> decoded = DecodeReport(bytes);
  EXPECT_TRUE(decoded.ok() && *decoded == *report);
  if (node.aggregator) {
    EXPECT_TRUE(node.aggregator->OnReport({{{{member}, *decoded}}}, now_).ok());
  } else {
    node.said.push_back({Node::Said::Kind::kReport, bytes});
  }
  return true;
}

bool SimulatedSet::SendPost(uint32_t member) {
  Node& node = nodes_[member];
  const auto lone = node.member->FindLone();
  if (!lone || lone->request->priority != 0) return false;
  const OpKind kind = lone->request->signature.kind;
  if (kind != OpKind::kAllreduce && kind != OpKind::kBarrier) return false;
  const auto post = node.member->TakePost();
  if (!post) return false;
  node.table->SetOwn(*post);
  node.posted = lone->token;
  node.of_host.reset();
  SendValues(member, node.routes->targets(), {submitted_[lone->token - 1].operation, 1});
  if (node.aggregator) {
    TellOfPost(member, member, *post);
  } else {
    node.said.push_back({Node::Said::Kind::kPost, Encode(*post, {})});
  }
  EndPosted(member);
  return true;
}

void SimulatedSet::SendValues(uint32_t member, std::span<const uint32_t> targets,
                              const Values& values) {
  const Bytes bytes = Encode(nodes_[member].table->own(), std::as_bytes(std::span(&values, 1)));
  for (const uint32_t target : targets) {
    if (target != member) nodes_[target].posts[member].push_back(bytes);
  }
}

// To the member that reports for the host of `of`.
void SimulatedSet::TellOfPost(uint32_t member, uint32_t of, const Post& post) {
  Report report;
  report.applied_sequence = post.applied_sequence;
  report.posted = post;
  EXPECT_TRUE(nodes_[member].aggregator->OnReport({{{{of}, std::move(report)}}}, now_).ok());
}

bool SimulatedSet::DeliverReport(uint32_t member) {
  std::deque<Node::Said>& said = nodes_[member].said;
  if (said.empty()) return false;
  const Node::Said next = std::move(said.front());
  said.pop_front();
  Node& parent = nodes_[tree_.parent(member)];
  Status status;
  switch (next.kind) {
    case Node::Said::Kind::kPost: {
      const Post post = DecodePost(next.bytes)->post;
      if (parent.aggregator) {
        TellOfPost(tree_.parent(member), member, post);
      } else {
        status = coordinator_.OnPost(member, post, now_);
      }
      break;
    }
    case Node::Said::Kind::kReport: {
      const GroupReport report{{{{member}, *DecodeReport(next.bytes)}}};
      status = parent.aggregator ? parent.aggregator->OnReport(report, now_)
                                 : coordinator_.OnReport(report, now_);
      break;
    }
    case Node::Said::Kind::kGroupReport:
      status = coordinator_.OnReport(*DecodeGroupReport(next.bytes), now_);
      break;
  }
  EXPECT_TRUE(status.ok()) << status.message();
  return true;
}

bool SimulatedSet::PassOnReports(uint32_t member) {
  Node& node = nodes_[member];
  const auto report = node.aggregator ? node.aggregator->TakeReport(now_) : std::nullopt;
  if (!report) return false;
  node.said.push_back({Node::Said::Kind::kGroupReport, Encode(*report)});
  const auto decoded = DecodeGroupReport(node.said.back().bytes);
  EXPECT_TRUE(decoded.ok() && *decoded == *report);
  return true;
}

bool SimulatedSet::DeliverPost(uint32_t member) {
  Node& node = nodes_[member];
  const auto first = static_cast<uint32_t>(random_.Below(nodes_.size()));
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const uint32_t from = (first + i) % static_cast<uint32_t>(nodes_.size());
    if (node.posts[from].empty()) continue;
    const Bytes bytes = std::move(node.posts[from].front());
    node.posts[from].pop_front();
    const auto posted = DecodePost(bytes);
    EXPECT_TRUE(posted.ok());
    EXPECT_NE(node.routes->KindFrom(from), PostRoutes::Kind::kNone);
    const Status status = node.table->Add(from, posted->post, posted->values, *node.member);
    EXPECT_TRUE(status.ok()) << status.message();
    EndPosted(member);
    return true;
  }
  return false;
}

// The sum of the values posted by `from`, once all of them have posted; `own` is this member's.
std::optional<SimulatedSet::Values> SimulatedSet::ValuesOf(uint32_t member,
                                                           std::span<const uint32_t> from,
                                                           const Values& own) const {
  const PostTable& table = *nodes_[member].table;
  if (!table.HasAll(from)) return std::nullopt;
  Values sum{own.operation, 0};
  for (const uint32_t other : from) {
    Values values = own;
    if (other != member) {
      const auto bytes = table.ValuesOf(other);
      EXPECT_EQ(bytes.size(), sizeof(values));
      std::memcpy(&values, bytes.data(), sizeof(values));
    }
    EXPECT_EQ(values.operation, own.operation);
    sum.members += values.members;
  }
  return sum;
}

// The sum over all members, once this member knows that all have posted.
std::optional<SimulatedSet::Values> SimulatedSet::ResultOf(uint32_t member) {
  Node& node = nodes_[member];
  const PostRoutes& routes = *node.routes;
  const Values own{submitted_[node.posted - 1].operation, 1};
  if (!routes.spans_hosts()) return ValuesOf(member, routes.members(), own);
  if (!routes.is_speaker()) return ValuesOf(member, routes.targets(), own);
  if (!node.of_host) {
    node.of_host = ValuesOf(member, routes.members(), own);
    if (!node.of_host) return std::nullopt;
    SendValues(member, routes.speakers(), *node.of_host);
  }
  const auto result = ValuesOf(member, routes.speakers(), *node.of_host);
  if (result) SendValues(member, routes.members(), *result);
  return result;
}

void SimulatedSet::EndPosted(uint32_t member) {
  Node& node = nodes_[member];
  if (!node.table->HasOwn()) return;
  const Submitted& mine = submitted_[node.posted - 1];
  if (mine.ended) return node.table->ForgetOwn();
  const auto result = ResultOf(member);
  if (!result) return;
  EXPECT_EQ(result->members, nodes_.size());
  const std::vector<Token>& tokens = by_operation_.at(mine.operation);
  EXPECT_EQ(tokens.size(), nodes_.size());
  for (const Token token : tokens) {
    EXPECT_EQ(submitted_[token - 1].request.signature, mine.request.signature);
  }
  EXPECT_EQ(node.member->EndPosted(), node.posted);
  node.table->End();
  ++num_posted_;
  num_named_posted_ += mine.request.name.empty() ? 0 : 1;
  End(member, node.posted);
}

}  // namespace horoscale::sim
