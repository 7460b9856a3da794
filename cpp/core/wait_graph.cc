#include "core/wait_graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/rank_list.h"

namespace horoscale {
namespace {

// A report that was not repeated for this many periods expires.
constexpr double kPeriodsKept = 2.5;
// Limits the work if thousands of ranks stall; a cycle can be found from each of its ranks.
constexpr size_t kMaxStarts = 64;

std::string Seconds(double seconds) { return std::to_string(static_cast<int64_t>(seconds)) + " s"; }

}  // namespace

void WaitGraph::Add(int from_rank, uint32_t process_set, uint32_t incarnation,
                    const StallNotice& notice, double now) {
  Operation operation{process_set, incarnation, notice.operation};
  const Span span{now - static_cast<double>(notice.milliseconds) / 1000, now};
  if (notice.one_would_do) {
    choices_[from_rank][std::move(operation)] = {span, notice.missing};
  } else if (notice.missing.empty()) {
    blocked_[from_rank][std::move(operation)] = span;
  } else {
    missed_[std::move(operation)] = {span, notice.missing};
  }
  changed_ = true;
}

void WaitGraph::Forget(double now) {
  const double oldest = now - kPeriodsKept * period_;
  for (auto& [rank, blocked] : blocked_) {
    std::erase_if(blocked, [&](const auto& entry) { return entry.second.until < oldest; });
  }
  std::erase_if(blocked_, [](const auto& entry) { return entry.second.empty(); });
  for (auto& [rank, choices] : choices_) {
    std::erase_if(choices, [&](const auto& entry) { return entry.second.span.until < oldest; });
  }
  std::erase_if(choices_, [](const auto& entry) { return entry.second.empty(); });
  std::erase_if(missed_, [&](const auto& entry) { return entry.second.span.until < oldest; });
  std::erase_if(told_, [&](const auto& entry) { return entry.second < now - period_; });
}

// A cycle closes when the last of its ranks blocks, so search from each rank at the time when it
// blocked.
std::optional<std::string> WaitGraph::TakeCircle(double now) {
  if (!std::exchange(changed_, false)) return std::nullopt;
  Forget(now);
  std::set<int> missed;
  for (const auto& [operation, statement] : missed_) {
    missed.insert(statement.ranks.begin(), statement.ranks.end());
  }
  size_t starts = 0;
  for (const auto& [rank, blocked] : blocked_) {
    if (!missed.contains(rank)) continue;
    if (++starts > kMaxStarts) break;
    for (const auto& [operation, span] : blocked) {
      auto circle = FindCircle(rank, span.since);
      if (!circle) continue;
      // A cycle is always reported starting at its lowest rank.
      const auto lowest =
          std::min_element(circle->begin(), circle->end(),
                           [](const Link& a, const Link& b) { return a.rank < b.rank; });
      std::rotate(circle->begin(), lowest, circle->end());
      std::string ranks;
      for (const Link& link : *circle) ranks += std::to_string(link.rank) + " ";
      if (told_.emplace(ranks, now).second) return Describe(*circle, now);
    }
  }
  return choices_.empty() ? std::nullopt : TakeKnot(now);
}

std::vector<WaitGraph::Wait> WaitGraph::WaitsOf(int rank, double time) const {
  std::vector<Wait> waits;
  if (const auto blocked = blocked_.find(rank); blocked != blocked_.end()) {
    for (const auto& [operation, span] : blocked->second) {
      const auto missed = missed_.find(operation);
      if (missed == missed_.end() || !span.Holds(time) || !missed->second.span.Holds(time)) {
        continue;
      }
      waits.push_back({&operation, span, &missed->second.ranks, false});
    }
  }
  if (const auto choices = choices_.find(rank); choices != choices_.end()) {
    for (const auto& [operation, missed] : choices->second) {
      if (missed.span.Holds(time)) waits.push_back({&operation, missed.span, &missed.ranks, true});
    }
  }
  return waits;
}

// The ranks that only wait for each other: starting with all blocked ranks, repeatedly removes
// those that wait for no remaining rank, or have an alternative.
std::set<int> WaitGraph::StuckAt(double time) const {
  std::map<int, std::vector<Wait>> waits;
  std::set<int> stuck;
  for (const auto& [rank, blocked] : blocked_) stuck.insert(rank);
  for (const auto& [rank, choices] : choices_) stuck.insert(rank);
  for (const int rank : stuck) waits[rank] = WaitsOf(rank, time);
  const auto is_stuck = [&stuck](int rank) { return stuck.contains(rank); };
  const auto goes_on = [&](int rank) {
    return std::none_of(waits[rank].begin(), waits[rank].end(), [&](const Wait& wait) {
      return wait.one_would_do ? std::all_of(wait.missed->begin(), wait.missed->end(), is_stuck)
                               : std::any_of(wait.missed->begin(), wait.missed->end(), is_stuck);
    });
  };
  while (std::erase_if(stuck, goes_on) > 0) {
  }
  return stuck;
}

// A knot closes when the last of its ranks blocks.
std::optional<std::string> WaitGraph::TakeKnot(double now) {
  std::set<double> times;
  for (const auto& [rank, choices] : choices_) {
    for (const auto& [operation, missed] : choices) times.insert(missed.span.since);
  }
  for (const auto& [rank, blocked] : blocked_) {
    for (const auto& [operation, span] : blocked) times.insert(span.since);
  }
  size_t starts = 0;
  for (auto time = times.rbegin(); time != times.rend() && starts++ < kMaxStarts; ++time) {
    const std::set<int> knot = StuckAt(*time);
    const bool has_choice =
        std::any_of(knot.begin(), knot.end(), [this](int rank) { return choices_.contains(rank); });
    if (!has_choice) continue;  // a cycle, which was reported
    std::string ranks = "knot ";
    for (const int rank : knot) ranks += std::to_string(rank) + " ";
    if (told_.emplace(ranks, now).second) return DescribeKnot(knot, *time, now);
  }
  return std::nullopt;
}

std::string WaitGraph::DescribeKnot(const std::set<int>& knot, double time, double now) const {
  std::string text = "deadlock: ranks wait for each other: ";
  for (const int rank : knot) {
    for (const Wait& wait : WaitsOf(rank, time)) {
      const bool is_free = wait.one_would_do && wait.missed->size() > 1;
      text += "rank " + std::to_string(rank) + " has been blocked in " + wait.operation->name +
              " on process set " + std::to_string(wait.operation->process_set) + " for " +
              Seconds(now - wait.span.since) + ", waiting for " + (is_free ? "one of " : "") +
              RankList(*wait.missed) + "; ";
    }
  }
  return text +
         "a receive from any rank needs a sender that is not blocked: let one of these ranks send "
         "first, or make its call asynchronous";
}

// Depth-first search along the waits of ranks for other ranks at that time.
std::optional<std::vector<WaitGraph::Link>> WaitGraph::FindCircle(int start, double time) const {
  std::vector<Link> path;
  std::set<int> seen;
  struct Frame {
    int rank;
    std::vector<std::pair<Link, int>> edges;  // waits of the rank, and the target rank
    size_t next = 0;
  };
  const auto open = [&](int rank) {
    Frame frame{rank, {}};
    const auto blocked = blocked_.find(rank);
    if (blocked == blocked_.end()) return frame;
    for (const auto& [operation, span] : blocked->second) {
      const auto missed = missed_.find(operation);
      if (missed == missed_.end() || !span.Holds(time) || !missed->second.span.Holds(time)) {
        continue;
      }
      for (const int to : missed->second.ranks) {
        frame.edges.push_back({{rank, &operation, span}, to});
      }
    }
    return frame;
  };
  std::vector<Frame> stack;
  stack.push_back(open(start));
  while (!stack.empty()) {
    Frame& top = stack.back();
    if (top.next == top.edges.size()) {
      stack.pop_back();
      if (!path.empty()) path.pop_back();
      continue;
    }
    const auto& [link, to] = top.edges[top.next++];
    if (to == start) {
      path.push_back(link);
      return path;
    }
    if (!seen.insert(to).second) continue;
    path.push_back(link);
    stack.push_back(open(to));
  }
  return std::nullopt;
}

std::string WaitGraph::Describe(const std::vector<Link>& circle, double now) {
  std::string text = "deadlock: ranks wait for each other: ";
  for (size_t i = 0; i < circle.size(); ++i) {
    const Link& link = circle[i];
    text += "rank " + std::to_string(link.rank) + " has been blocked in " + link.operation->name +
            " on process set " + std::to_string(link.operation->process_set) + " for " +
            Seconds(now - link.span.since) + ", waiting for rank " +
            std::to_string(circle[(i + 1) % circle.size()].rank) + "; ";
  }
  return text +
         "blocking calls must be made in the same order on all ranks: reorder them, or make all "
         "but one of these asynchronous";
}

}  // namespace horoscale
