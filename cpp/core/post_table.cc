#include "core/post_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace horoscale {
namespace {

// The number of operations that a member may have posted before this one has submitted them; it
// waits for each.
constexpr size_t kMostAhead = 2;

}  // namespace

Status PostTable::Add(uint32_t from, const Post& post, std::span<const std::byte> values,
                      const Member& member) {
  std::vector<Posted>& posted = posted_[from];
  const bool is_known = std::any_of(posted.begin(), posted.end(),
                                    [&](const Posted& other) { return other.post.IsOf(post); });
  if (is_known) return Status::Protocol("it posts an operation twice");
  DropOver(posted, member);
  if (!IsNeeded(post, member)) return Status::Ok();
  const auto ahead = std::count_if(posted.begin(), posted.end(), [&](const Posted& other) {
    return !member.HasPassed(other.post);
  });
  if (static_cast<size_t>(ahead) >= kMostAhead) {
    return Status::Protocol("it has more posted operations than allowed");
  }
  Posted& added = posted.emplace_back();
  added.post = post;
  if (!spare_.empty()) {
    added.values = std::move(spare_.back());
    spare_.pop_back();
  }
  added.values.assign(values.begin(), values.end());
  return Status::Ok();
}

// Operations that this member has reported are planned, so posts of them are not needed. Operations
// that it has posted may complete with the others' posts, even after the slot was retired.
bool PostTable::IsNeeded(const Post& post, const Member& member) const {
  return (own_ && post.IsOf(*own_)) || member.MayPost(post);
}

void PostTable::DropOver(std::vector<Posted>& posted, const Member& member) {
  std::erase_if(posted, [&](const Posted& other) { return !IsNeeded(other.post, member); });
}

const PostTable::Posted* PostTable::Find(uint32_t from) const {
  for (const Posted& posted : posted_[from]) {
    if (posted.post.IsOf(*own_)) return &posted;
  }
  return nullptr;
}

bool PostTable::HasAll(std::span<const uint32_t> members) const {
  if (!own_) return false;
  return std::all_of(members.begin(), members.end(), [this](uint32_t from) {
    if (from == self_) return true;
    const Posted* const posted = Find(from);
    return posted != nullptr && posted->post.Agrees(*own_);
  });
}

std::span<const std::byte> PostTable::ValuesOf(uint32_t from) const { return Find(from)->values; }

void PostTable::End() {
  for (std::vector<Posted>& posted : posted_) {
    std::erase_if(posted, [this](Posted& other) {
      if (!other.post.IsOf(*own_)) return false;
      spare_.push_back(std::move(other.values));
      return true;
    });
  }
  own_.reset();
}

}  // namespace horoscale
