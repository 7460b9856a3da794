// TcpMesh: the connections of one rank to ranks of other hosts, as far as they are made at
// start-up.
//
// The ranks gather at the store by which addresses each of them may be reached. Every rank connects
// to the ranks below it and, at the same time, lets in those above it, so that nobody waits for
// others in a row. A pair of ranks has several streams: one for control, the others for data. What
// makes these links makes the others later (TcpLinkMaker).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "rendezvous/store.h"
#include "transport/tcp/tcp_door.h"
#include "transport/tcp/tcp_link_maker.h"

namespace horoscale {

struct TcpMeshConfig {
  TcpLinkTerms terms;
  TcpDoor::Options door;
  int size = 1;              // of the job
  std::vector<int> peers;    // the ranks of other hosts, sorted
  std::vector<int> at_once;  // of the peers, those that are linked at the start
  double seconds = 60;       // for everything
  // Called now and then while others are waited for: an error says why to give up. May be empty.
  std::function<Status()> look = nullptr;
  // Called with a failure while the links still stand: to close them makes the peers fail, which
  // then have to find its cause. Returns what the failure is made of; may be empty.
  std::function<Status(const Status&)> explain = nullptr;
};

struct TcpMesh {
  std::map<int, TcpStreams> links;  // those of the start at least, by rank
  std::unique_ptr<TcpLinkMaker> maker;
};

// An error names the ranks that did not come or can't be reached, and how it was tried.
Result<TcpMesh> ConnectTcpMesh(const TcpMeshConfig& config, Store& store);

}  // namespace horoscale
