// PostRoutes: between whom the posts of a set travel (post_table.h). Pure.
//
// On one host every member posts to every other one. Where a set spans hosts, the lowest member of
// each host speaks for it, as in the ReportTree: the others post to their *speaker*. When all of a
// host have posted alike, its speaker posts what their values come to, to the other speakers; who
// has that of all hosts passes the result on in its own. So one message goes from each host to each
// other one, however many members they have.
//
// The coordinator hears of each member's post by the way that the member's reports take, so that
// both come in order: on one host, and in its own, it gets the posts themselves. Speakers of
// several members report theirs with the reports of their host, one of a single member has no
// others to wait for: its post to the other speakers says it all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

class PostRoutes {
 public:
  // `hosts`: as for the ReportTree.
  PostRoutes(uint32_t size, uint32_t self, std::span<const uint32_t> hosts);

  // What a post of that member is to this one.
  enum class Kind {
    kNone,    // not its to send
    kMember,  // its own values
    kHost,    // what the values of its host come to
    kResult,  // of all hosts
  };
  Kind KindFrom(uint32_t from) const;
  // Whether it also tells the coordinator, or who reports for the host, of that member's post.
  bool Counts(uint32_t from) const;

  bool spans_hosts() const { return !speakers_.empty(); }
  bool is_speaker() const { return spans_hosts() && speaker_ == self_; }
  // To whom this member's own values go.
  const std::vector<uint32_t>& targets() const { return targets_; }
  // Whose values this member folds, itself among them, ascending; only its own host's.
  const std::vector<uint32_t>& members() const { return members_; }
  // Of all hosts, in their order; none on one host.
  const std::vector<uint32_t>& speakers() const { return speakers_; }
  // The most members that a host has.
  uint32_t most() const { return most_; }

 private:
  const uint32_t self_;
  uint32_t speaker_ = 0;  // of the own host
  uint32_t most_ = 0;
  std::vector<uint32_t> targets_;
  std::vector<uint32_t> members_;
  std::vector<uint32_t> speakers_;
  std::vector<bool> is_alone_;  // by place in speakers_
};

}  // namespace horoscale
