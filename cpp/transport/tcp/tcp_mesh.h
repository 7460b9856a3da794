// TcpMesh: the connections of one rank to all ranks of other hosts, made at start-up.
//
// The ranks gather at the store by which addresses each of them may be reached. Every rank connects
// to the ranks below it and, at the same time, lets in those above it, so that nobody waits for
// others in a row. A pair of ranks has several streams: one for control, the others for data.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "platform/byte_stream.h"
#include "rendezvous/store.h"

namespace horoscale {

struct TcpMeshConfig {
  int rank = 0;
  int size = 1;                         // of the job; all of its ranks make a mesh
  std::vector<int> peers;               // of other hosts, sorted
  std::vector<std::string> interfaces;  // to be reached by, and to listen on; none: all
  bool loopback_only = false;           // listen on loopback alone
  std::string first_address;            // of this machine, that others probably reach; may be empty
  std::string key_prefix;               // of the job and its round, such as "init1/"
  std::string secret;
  bool encrypt = false;         // the same on all
  double seconds = 60;          // for everything
  double silence_seconds = 30;  // by then a link has ended whose peer's machine does not answer
  uint32_t data_streams = 1;    // of a pair of ranks; the same on all
  // Called now and then while others are waited for: an error says why to give up. May be empty.
  std::function<Status()> look = nullptr;
  // Called with a failure while the links still stand: to close them makes the peers fail, which
  // then have to find its cause. Returns what the failure is made of; may be empty.
  std::function<Status(const Status&)> explain = nullptr;
};

// The first one is for control, the others are for data.
using TcpStreams = std::vector<ByteStream>;

// By rank. An error names the ranks that did not come or can't be reached, and how it was tried.
Result<std::map<int, TcpStreams>> ConnectTcpMesh(const TcpMeshConfig& config, Store& store);

}  // namespace horoscale
