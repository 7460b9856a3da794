// LossSpread: tells of lost ranks those that may have no link to them.
//
// Ranks of a host see each other's ends. Who sees one there tells the ranks of other hosts to which
// it has links, of which there is one on each host. Who sees or hears of one over TCP tells its own
// host. So a loss is known everywhere after two steps, also if a whole host is lost, which is seen
// by ranks of every other host. Each rank believes its own link more than others, because what the
// lost rank sent comes on it before the end.
//
// Where a rank has lost all ranks of a host to which it had links it makes one to the next rank
// there, which tells it of earlier and further losses. Of a rank that only can't be reached nobody
// else is told.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/messages.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace horoscale {

class LossSpread {
 public:
  // `hosts[r]`: the host of rank r. All outlive it.
  LossSpread(ShmTransport* near, TcpTransport* far, const std::vector<uint32_t>& hosts);

  // Polls both parts of the transport, for the sink.
  bool Poll(TransportSink& sink);

 private:
  class Ear;

  // The rank is lost, which was seen, or told by another rank, in one of the two parts.
  void OnLost(int rank, const Status& reason, bool is_near);
  void OnNotice(int from, std::span<const std::byte> payload, bool is_near);
  // Goes on where a rank may have been lost before it had told all of its host.
  void TellWhatItTold(int rank);
  void TellNewlyLinked();
  void TellHost(std::span<const std::byte> notice);
  void TellOthers(std::span<const std::byte> notice);
  void ReplaceRepresentatives();
  bool IsNear(int rank) const;

  ShmTransport* const near_;
  TcpTransport* const far_;
  const std::vector<uint32_t>& hosts_;
  const int rank_;
  std::map<int, std::vector<std::byte>> goodbyes_;  // of ranks that are about to be lost
  struct Told {
    int by = -1;
    std::vector<std::byte> notice;
  };
  std::map<int, Told> told_near_;  // ranks of other hosts that a rank of this one has told of
  std::map<int, std::vector<std::byte>> lost_near_;  // ranks of this host, and what others are told
  std::set<int> lost_;
  std::set<int> unreached_;  // of these, the ones that may live: this rank alone can't reach them
  double replace_at_ = 0;    // when representatives may be missing; 0: none is
};

}  // namespace horoscale
