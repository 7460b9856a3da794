// The rows of each member are divided into units (encoded_units.h). The member has a representative
// on each host, which folds the host's values of its rows; on its own host that is the member
// itself. A chunk passes through two phases:
//
//   contribution  within the host: to each representative the units that it folds
//   partial       to the members of other hosts: the representatives' folds, encoded
//
// With one member on every host there is no contribution. A member's own host's sum is not encoded.
#include "collectives/encoded_reducescatter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/encoded_fold.h"
#include "collectives/pipeline.h"

namespace horoscale {
namespace {

class EncodedReducescatter : public EncodedFold {
 public:
  EncodedReducescatter(Exchange& exchange, HostGroups hosts, const ReducescatterArgs& args,
                       EncodedUnits units, Pipeline pipeline)
      : EncodedFold(exchange, std::move(hosts), std::move(units), pipeline.rounds(), args.reduction,
                    args.encoding, args.totals),
        pipeline_(std::move(pipeline)),
        has_contribution_(hosts_.most() > 1),
        own_sums_(banks_) {
    for (uint32_t member = 0; member < size(); ++member) {
      if (hosts_.RepresentativeOf(member, host_) == self()) served_.push_back(member);
    }
  }

 private:
  bool Send(int64_t round) override {
    const auto [phase, chunk] = pipeline_.At(round);
    return has_contribution_ && phase == 0 ? SendContribution(round, chunk)
                                           : SendPartial(round, chunk);
  }

  bool SendPartial(int64_t round, int64_t chunk) {
    if (!OwnLane(chunk).empty()) {
      std::byte* const bank = Reserve(round);
      if (bank == nullptr || !FindContributions(pipeline_.RoundOf(0, chunk))) return false;
      const CodingTime time(totals_);
      ClearExtents();
      int64_t end = 0;
      for (uint32_t owner : served_) {
        const Run part = units_.Part(chunk, lane_, owner);
        if (owner == self()) {
          FoldOwn(part, own_sums_[Bank(chunk)]);
          continue;
        }
        for (size_t i = part.first; i < part.end; ++i) {
          FoldHost(units_[i], values_);
          EncodeValues(units_[i], bank + units_[i].encoded_place, units_[i].sum_residuals);
        }
        const ByteRange range = units_.EncodedOf(part);
        SetExtent(owner, range);
        end = std::max(end, range.first + range.bytes);
      }
      PublishExtents(round, end, extents_);
    }
    ++folded_chunks_;
    return true;
  }

  void FoldOwn(Run part, std::vector<float>& sums) {
    int64_t elements = 0;
    for (size_t i = part.first; i < part.end; ++i) elements += units_[i].elements;
    sums.resize(static_cast<size_t>(elements));
    float* next = sums.data();
    for (size_t i = part.first; i < part.end; ++i) {
      FoldHost(units_[i], next);
      next += units_[i].elements;
    }
  }

  Progress Receive(int64_t round) override {
    const auto [phase, chunk] = pipeline_.At(round);
    if (has_contribution_ && phase == 0) {
      return chunk < folded_chunks_ ? Progress::kDone : Progress::kIdle;
    }
    const Run part = units_.Part(chunk, lane_, self());
    if (part.empty()) return Progress::kDone;
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      if (host == host_) continue;
      sources_[host] = Peek(round, hosts_.RepresentativeOf(self(), host));
      if (sources_[host] == nullptr) return Progress::kIdle;
    }
    const CodingTime time(totals_);
    const float* own = own_sums_[Bank(chunk)].data();
    for (size_t i = part.first; i < part.end; ++i) {
      FoldPartials(units_[i], InTensors(average_), units_[i].out, own);
      own += units_[i].elements;
    }
    return Progress::kDone;
  }

  const Pipeline pipeline_;
  const bool has_contribution_;
  std::vector<uint32_t> served_;  // the members whose representative this one is
  // This member's host's sums of its units, by bank: not reused before the round has been received.
  std::vector<std::vector<float>> own_sums_;
};

}  // namespace

std::unique_ptr<Collective> MakeEncodedReducescatter(Exchange& exchange, HostGroups hosts,
                                                     const ReducescatterArgs& args) {
  EncodedUnits units(exchange, hosts, args);
  Pipeline pipeline(hosts.most() > 1 ? 2 : 1, units.chunks(), exchange.banks());
  return std::make_unique<EncodedReducescatter>(exchange, std::move(hosts), args, std::move(units),
                                                std::move(pipeline));
}

}  // namespace horoscale
