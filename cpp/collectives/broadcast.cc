// Broadcast: the root publishes its bytes chunk by chunk; the others copy them out.
#include <algorithm>
#include <utility>

#include "collectives/round_loop.h"
#include "collectives/segment_map.h"

namespace horoscale {
namespace {

class Broadcast : public RoundLoop {
 public:
  Broadcast(Exchange& exchange, std::vector<uint32_t> participants, BroadcastArgs args,
            int64_t rounds)
      : RoundLoop(exchange, std::move(participants), rounds),
        root_(args.root),
        segments_(std::move(args.segments)) {}

 private:
  int64_t First(int64_t chunk) const { return chunk * chunk_bytes(); }
  int64_t Bytes(int64_t chunk) const {
    return std::min(chunk_bytes(), segments_.bytes() - First(chunk));
  }

  bool Send(int64_t round) override {
    if (self() != root_) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    segments_.Gather(bank, First(round), Bytes(round));
    PublishToPeers(round, Bytes(round));
    return true;
  }

  Progress Receive(int64_t round) override {
    return ReceiveFromEach(
        round, [this](uint32_t peer) { return peer == root_; },
        [&](uint32_t, const std::byte* chunk) {
          segments_.Scatter(chunk, First(round), Bytes(round));
        });
  }

  // The root's own copy.
  bool LocalWork() override {
    if (self() != root_ || Bytes(copied_chunks_) <= 0) return false;
    segments_.CopyThrough(First(copied_chunks_), Bytes(copied_chunks_));
    ++copied_chunks_;
    return true;
  }

  const uint32_t root_;
  const SegmentMap segments_;
  int64_t copied_chunks_ = 0;
};

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(Exchange& exchange, BroadcastArgs args) {
  std::vector<uint32_t> participants = Participants(exchange, args.absent);
  int64_t bytes = 0;
  for (const Segment& segment : args.segments) bytes += segment.bytes;
  const int64_t chunks = DivideUp(bytes, static_cast<int64_t>(exchange.chunk_bytes()));
  const int64_t rounds = participants.size() == 1 ? 0 : chunks;
  if (!std::binary_search(participants.begin(), participants.end(), exchange.self())) {
    return std::make_unique<Bystander>(exchange, rounds);
  }
  return std::make_unique<Broadcast>(exchange, std::move(participants), std::move(args), rounds);
}

}  // namespace horoscale
