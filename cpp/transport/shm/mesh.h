// Mesh: the links of one rank to all others of its host, made at start-up.
//
// They gather at the store where each of them listens. Every rank connects to the ranks below it
// and lets in those above it. Rank 0 waits for nobody before it lets others in, rank 1 only for
// rank 0, and so on: there is no circle.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "rendezvous/store.h"
#include "transport/shm/link.h"

namespace horoscale {

struct MeshConfig {
  std::vector<int> ranks;  // of this host, sorted; the own is among them
  std::string key_prefix;  // of the job and its round, such as "init1/"
  std::string secret;
  double seconds = 60;  // for everything
  // Called now and then while others are waited for: an error says why to give up. May be empty.
  std::function<Status()> look = nullptr;
  // Called with a failure while the links still stand: to close them makes the peers fail, which
  // then have to find its cause. Returns what the failure is made of; may be empty.
  std::function<Status(const Status&)> explain = nullptr;
};

// By rank; without the own. rings[r] is the control ring to rank r in our arena. An error names the
// ranks that did not come or that broke.
Result<std::map<int, ShmLink>> ConnectMesh(const MeshConfig& config, const LinkOffer& offer,
                                           const std::map<int, std::byte*>& rings, Store& store);

}  // namespace horoscale
