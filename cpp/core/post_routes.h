// PostRoutes: senders and receivers of a set's posts (post_table.h). Pure.
//
// On one host, every member posts to every other one. In a set that spans hosts, the lowest member
// of each host is its *speaker*, as in the ReportTree, and the others post to it. When all members
// of a host have posted the same operation, the speaker folds their values and posts the result to
// the other speakers. A speaker that has the results of all hosts distributes the total on its own
// host. So each host sends one message to each other host, however many members they have.
//
// The coordinator learns of each member's post on the path of the member's reports, so that both
// arrive in order. On one host, and from its own host, it receives the posts themselves. Speakers
// of several members report their posts with the reports of their host. A speaker that is the only
// member on its host reports through its post to the other speakers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace horoscale {

class PostRoutes {
 public:
  // `hosts` as for the ReportTree.
  PostRoutes(uint32_t size, uint32_t self, std::span<const uint32_t> hosts);

  // The meaning of a post from that member to this one.
  enum class Kind {
    kNone,    // not allowed
    kMember,  // the member's own values
    kHost,    // the folded values of its host
    kResult,  // the folded values of all hosts
  };
  Kind KindFrom(uint32_t from) const;
  // Whether that member's post also counts as its report to the coordinator, or to the speaker that
  // reports for the host.
  bool Counts(uint32_t from) const;

  bool spans_hosts() const { return !speakers_.empty(); }
  bool is_speaker() const { return spans_hosts() && speaker_ == self_; }
  // The receivers of this member's own values.
  const std::vector<uint32_t>& targets() const { return targets_; }
  // The members whose values this member folds, including itself, ascending; only those on its own
  // host.
  const std::vector<uint32_t>& members() const { return members_; }
  // The speakers of all hosts, in their order; empty on one host.
  const std::vector<uint32_t>& speakers() const { return speakers_; }
  // The largest number of members on a host.
  uint32_t most() const { return most_; }

 private:
  const uint32_t self_;
  uint32_t speaker_ = 0;  // of this member's host
  uint32_t most_ = 0;
  std::vector<uint32_t> targets_;
  std::vector<uint32_t> members_;
  std::vector<uint32_t> speakers_;
  std::vector<bool> is_alone_;  // by index in speakers_
};

}  // namespace horoscale
