// MessageChannels: the process sets of a transport over messages, by their ids on the wire. Takes
// their messages to their exchanges.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/channel_id.h"
#include "transport/early_channels.h"
#include "transport/message/message_exchange.h"

namespace horoscale {

class MessageChannels {
 public:
  MessageChannels(int rank, MessagePost* post, TransportCounters* counters)
      : rank_(rank), post_(post), counters_(counters) {}
  // Exchanges that are still there are of no more use.
  ~MessageChannels();

  // `served` says which ranks are reached by messages; this one isn't. `hosts` is what the
  // exchange says of its members.
  Result<std::unique_ptr<MessageExchange>> Open(ChannelId id, std::span<const int> ranks,
                                                const std::function<bool(int)>& served,
                                                std::vector<uint32_t> hosts);

  // What a rank says of its exchange: kOpened, kReleased. kProtocol if it may not say so.
  // `is_over`: nothing is opened here any more.
  Status OnMessage(int from, const MessageHeader& header, bool is_over);

  // The set is over: nothing is opened here any more, and what is open is about to be closed.
  void Forget(ChannelId channel);

  // There is a link to the rank, which had none: it is told what is open here.
  void OnLinked(int rank);
  void OnRankLost(int rank);
  // At the end of each Poll(): tells members that their chunks are released, if they have waited
  // for that for some polls.
  void OnPolled();
  // Before sleep: the same at once.
  void TellReleased();
  // Whether a chunk for the rank waits until it has opened its channel.
  bool IsAwaitedBy(int rank) const;

  // A part of a chunk on its way into its bank, or nowhere if the channel is closed here.
  struct Arrival {
    std::byte* space = nullptr;          // for header.bytes; null: nowhere
    std::shared_ptr<const void> memory;  // of the space
    ChannelId id;
    uint32_t member = 0;
    uint64_t round = 0;
  };
  // kProtocol if the rank may not send it.
  Result<Arrival> Begin(int from, const MessageHeader& header);
  void End(const Arrival& arrival);

 private:
  struct Channel {
    std::vector<int> ranks;               // empty: not open here yet
    std::vector<bool> served;             // of the ranks
    MessageExchange* exchange = nullptr;  // null: not open here yet, or not any more
    std::set<int> told;                   // the served ones with a link, which have been told so
    std::set<int> opened;                 // those that have, or are lost
    bool is_over = false;                 // forgotten while it was open
  };

  void Close(ChannelId id);
  void TellOpened(ChannelId id, Channel& channel, uint32_t member);
  // Whether nothing may come of it any more that has to be told from what is of another one.
  static bool IsQuiet(const Channel& channel);
  Status OnOpened(int from, ChannelId id, bool is_over);
  // Position among the ranks; kProtocol for one that isn't there.
  static Result<uint32_t> MemberOf(const Channel& channel, ChannelId id, int rank);

  const int rank_;
  MessagePost* post_;
  TransportCounters* counters_;
  std::map<ChannelId, Channel> channels_;
  int polls_owing_ = 0;  // since members have not been told
  EarlyChannels early_;
};

}  // namespace horoscale
