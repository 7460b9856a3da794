// MessageChannels: the process sets of a message transport by their IDs on the wire. Dispatches
// messages to their exchanges.
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
  // Remaining exchanges become unusable.
  ~MessageChannels();

  // `served` marks the ranks that are reached by messages, which excludes this rank. `hosts` is
  // returned by the exchange's hosts().
  Result<std::unique_ptr<MessageExchange>> Open(ChannelId id, std::span<const int> ranks,
                                                const std::function<bool(int)>& served,
                                                std::vector<uint32_t> hosts);

  // Handles kOpened and kReleased messages. kProtocol if the rank may not send them. `is_over`: the
  // set has been removed here.
  Status OnMessage(int from, const MessageHeader& header, bool is_over);

  // The set has been removed: its channel will not be opened here, or will be closed soon.
  void Forget(ChannelId channel);

  // A link to the rank was made: announces the channels that are open here.
  void OnLinked(int rank);
  void OnRankLost(int rank);
  // Called at the end of each Poll(): sends pending releases of chunks after some polls.
  void OnPolled();
  // Called before sleep: sends pending releases immediately.
  void TellReleased();
  // Whether a chunk for the rank is waiting for the rank to open the channel.
  bool IsAwaitedBy(int rank) const;

  // A part of a chunk that is being received into its bank, or discarded if the channel is closed
  // here.
  struct Arrival {
    std::byte* space = nullptr;          // for header.bytes; null: discard
    std::shared_ptr<const void> memory;  // of the space
    ChannelId id;
    uint32_t member = 0;
    uint64_t round = 0;
  };
  // Starts receiving a part. kProtocol if the rank may not send it.
  Result<Arrival> Begin(int from, const MessageHeader& header);
  void End(const Arrival& arrival);

 private:
  struct Channel {
    std::vector<int> ranks;               // empty: not open here yet
    std::vector<bool> served;             // of the ranks
    MessageExchange* exchange = nullptr;  // null: not open here yet, or not any more
    std::set<int> told;                   // served ranks with a link that have been notified
    std::set<int> opened;                 // served ranks that have opened it, or are lost
    bool is_over = false;                 // forgotten while it was open
  };

  void Close(ChannelId id);
  void TellOpened(ChannelId id, Channel& channel, uint32_t member);
  // Whether no more messages can arrive for it, which would have to be distinguished from those of
  // another channel.
  static bool IsQuiet(const Channel& channel);
  Status OnOpened(int from, ChannelId id, bool is_over);
  // The index of the rank among the members; kProtocol if it is not a member.
  static Result<uint32_t> MemberOf(const Channel& channel, ChannelId id, int rank);

  const int rank_;
  MessagePost* post_;
  TransportCounters* counters_;
  std::map<ChannelId, Channel> channels_;
  int polls_owing_ = 0;  // number of polls since releases were last sent
  EarlyChannels early_;
};

}  // namespace horoscale
