// The phases through which each chunk of an allreduce over hosts passes, and when: the same on all
// members. What a phase moves is told in hosts_allreduce.cc, and in encoded_allreduce.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/host_groups.h"
#include "collectives/pipeline.h"
#include "transport/exchange.h"

namespace horoscale {

enum HostsPhase : size_t { kContribution, kPartial, kResult, kSpread, kNumHostsPhases };

class HostsPhases {
 public:
  // Without results, whoever has all partials of a chunk has its result.
  HostsPhases(const Exchange& exchange, const HostGroups& hosts, bool has_results, int64_t chunks) {
    has_[kContribution] = has_[kSpread] = hosts.most() > 1;
    has_[kPartial] = true;
    has_[kResult] = has_results;
    int64_t count = 0;
    for (size_t phase = 0; phase < kNumHostsPhases; ++phase) {
      if (!has_[phase]) continue;
      index_[phase] = count;
      phase_of_[static_cast<size_t>(count++)] = static_cast<HostsPhase>(phase);
    }
    pipeline_ = Pipeline(count, chunks, exchange.banks());
  }

  bool has(HostsPhase phase) const { return has_[phase]; }
  int64_t rounds() const { return pipeline_.rounds(); }
  int64_t ChunkOf(int64_t round) const { return pipeline_.At(round).chunk; }
  HostsPhase PhaseOf(int64_t round) const {
    return phase_of_[static_cast<size_t>(pipeline_.At(round).phase)];
  }
  int64_t RoundOf(HostsPhase phase, int64_t chunk) const {
    return pipeline_.RoundOf(index_[phase], chunk);
  }

 private:
  std::array<bool, kNumHostsPhases> has_{};
  std::array<int64_t, kNumHostsPhases> index_{};        // of a phase, among those that there are
  std::array<HostsPhase, kNumHostsPhases> phase_of_{};  // the other way round
  Pipeline pipeline_;
};

}  // namespace horoscale
