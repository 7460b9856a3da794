// Who combines what with whom in an Adasum of all members, stage by stage: vector halving, distance
// doubling. A pure function of the members' number, the same on all of them.
//
// Members are in groups of equal size, g consecutive ones each (1 where all levels are Adasum). Of
// G groups, P is the largest power of two that isn't more.
//
//   average  if g > 1: the members of a group average their vectors; each has its share of the
//            result
//   fold     if G > P: member i of group P + k gives all it has to member i of group k
//   pair     for d = 1, 2, 4, … P/2: members of groups k and k ^ d share what they both have a part
//            of: each gets half of it from the other
//
// In each stage the members of a cluster have the same range of elements of each tensor, each of
// another vector, and then each its share of that range of the combined one. Results go back the
// other way.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace horoscale {

// A range of a tensor's elements.
struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
};

// How many consecutive members a group has, where ranks of equal rank / start_level average first:
// those of a host, if start_level is the number of ranks of each. `ranks`: of the members,
// ascending. Nothing if the groups are of different sizes.
std::optional<uint32_t> AdasumGroup(std::span<const int> ranks, int start_level);

class AdasumStages {
 public:
  enum class Kind : uint8_t { kAverage, kFold, kPair };

  // `group` divides `members`.
  AdasumStages(uint32_t members, uint32_t group);

  size_t count() const { return stages_.size(); }
  Kind kind(size_t stage) const { return stages_[stage].kind; }
  // Those who combine what they have with this member in the stage, itself among them, in the order
  // of their vectors. Empty if it takes no part.
  std::vector<uint32_t> Cluster(size_t stage, uint32_t member) const;
  // Those who have parts of the same two vectors after the stage as this member: the sums of their
  // products are those of the vectors. Empty if it has none.
  std::vector<uint32_t> Holders(size_t stage, uint32_t member) const;
  // How many members a cluster has.
  uint32_t ClusterSize(size_t stage) const { return kind(stage) == Kind::kAverage ? group_ : 2; }
  // What member `index` of a cluster gets of a range. Nobody gets more than the first one.
  ElementRange Share(size_t stage, ElementRange range, uint32_t index) const;

 private:
  struct Stage {
    Kind kind;
    uint32_t distance;  // in groups
  };

  uint32_t group_;
  uint32_t pairing_;  // groups: P
  uint32_t rest_;     // groups: G - P
  std::vector<Stage> stages_;
};

}  // namespace horoscale
