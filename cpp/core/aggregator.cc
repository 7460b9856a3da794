#include "core/aggregator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/codec.h"

namespace horoscale {
namespace {

// Limit per message; a single part may be larger.
constexpr size_t kGroupReportBytes = 1024 * 1024;

size_t SizeBound(const JointReport& part) {
  const Report& report = part.report;
  size_t bytes = 64 + 10 * part.members.size() + 5 * report.hits.size() +
                 15 * report.unnamed_hits.size() + 5 * report.hit_priorities.size() +
                 14 * report.errors.size();
  for (const Request& request : report.requests) {
    bytes += EncodedSizeBound(request.name, request.signature);
  }
  return bytes;
}

}  // namespace

Aggregator::Aggregator(std::vector<uint32_t> members, double patience_seconds)
    : members_(std::move(members)),
      patience_(patience_seconds),
      last_part_(members_.size(), kNone),
      silent_(members_.size()) {}

size_t Aggregator::IndexOf(uint32_t member) const {
  const auto found = std::lower_bound(members_.begin(), members_.end(), member);
  return static_cast<size_t>(found - members_.begin());
}

Status Aggregator::CheckSpeakers(const JointReport& part) const {
  if (std::includes(members_.begin(), members_.end(), part.members.begin(), part.members.end())) {
    return Status::Ok();
  }
  return Status::Protocol("a report contains members of another group");
}

Status Aggregator::OnReport(const GroupReport& report, double now) {
  for (const JointReport& part : report.parts) HS_RETURN_IF_ERROR(CheckSpeakers(part));
  if (held_.parts.empty()) oldest_ = now;
  for (const JointReport& part : report.parts) Add(part);
  return Status::Ok();
}

// Merges it with the first equal part that comes after all other reports of its members.
void Aggregator::Add(const JointReport& part) {
  size_t place = 0;
  for (const uint32_t member : part.members) {
    const size_t last = last_part_[IndexOf(member)];
    if (last == kNone) {
      --silent_;
    } else {
      place = std::max(place, last + 1);
    }
  }
  std::vector<JointReport>& parts = held_.parts;
  while (place < parts.size() && parts[place].report != part.report) ++place;
  for (const uint32_t member : part.members) last_part_[IndexOf(member)] = place;
  if (place == parts.size()) {
    parts.push_back(part);
    return;
  }
  std::vector<uint32_t>& together = parts[place].members;
  const auto middle = static_cast<std::ptrdiff_t>(together.size());
  together.insert(together.end(), part.members.begin(), part.members.end());
  std::inplace_merge(together.begin(), together.begin() + middle, together.end());
}

std::optional<GroupReport> Aggregator::TakeReport(double now) {
  if (held_.parts.empty()) return std::nullopt;
  passing_on_ = passing_on_ || silent_ == 0 || now >= *Deadline();
  if (!passing_on_) return std::nullopt;
  std::vector<JointReport>& parts = held_.parts;
  size_t end = 0;
  for (size_t bytes = 0; end < parts.size(); ++end) {
    bytes += SizeBound(parts[end]);
    if (end > 0 && bytes > kGroupReportBytes) break;
  }
  GroupReport report;
  const auto cut = parts.begin() + static_cast<std::ptrdiff_t>(end);
  report.parts.assign(std::make_move_iterator(parts.begin()), std::make_move_iterator(cut));
  parts.erase(parts.begin(), cut);
  for (size_t& last : last_part_) {
    if (last == kNone) continue;
    if (last < end) ++silent_;
    last = last < end ? kNone : last - end;
  }
  passing_on_ = !parts.empty();
  return report;
}

std::optional<double> Aggregator::Deadline() const {
  if (held_.parts.empty()) return std::nullopt;
  return oldest_ + patience_;
}

}  // namespace horoscale
