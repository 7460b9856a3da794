// LossSpread: forwards the losses of ranks to ranks that may have no link to them.
//
// Ranks of a host detect each other's exits. A rank that detects one notifies the ranks of other
// hosts to which it has links, at least one per host. A rank that detects or learns of a loss over
// TCP notifies its own host. So a loss is known everywhere after two steps. This also holds for the
// loss of a whole host, which ranks of every other host detect. Each rank prefers its own link over
// notices, because the lost rank's last data arrives on it first.
//
// A rank that has lost all ranks of a host to which it had links creates a link to the next rank
// there, which notifies it of earlier and later losses. A rank that is only unreachable from here
// is not reported to others.
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
  // `hosts[r]` is the host of rank r. All arguments must outlive it.
  LossSpread(ShmTransport* near, TcpTransport* far, const std::vector<uint32_t>& hosts);

  // Polls both parts of the transport, for the sink.
  bool Poll(TransportSink& sink);

 private:
  class Ear;

  // Handles the loss of a rank, which one of the two parts has detected or another rank has
  // reported.
  void OnLost(int rank, const Status& reason, bool is_near);
  void OnNotice(int from, std::span<const std::byte> payload, bool is_near);
  // Continues notifications that a lost rank may not have sent to all ranks of its host.
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
  std::map<int, std::vector<std::byte>> goodbyes_;  // of ranks that are leaving
  struct Told {
    int by = -1;
    std::vector<std::byte> notice;
  };
  std::map<int, Told> told_near_;  // lost ranks of other hosts that a rank of this host has
                                   // reported
  std::map<int, std::vector<std::byte>> lost_near_;  // lost ranks of this host, and the notices for
                                                     // others
  std::set<int> lost_;
  std::set<int> unreached_;  // of these, ranks that may be alive: only this rank can't reach them
  double replace_at_ = 0;    // when to replace lost representatives; 0: none are missing
};

}  // namespace horoscale
