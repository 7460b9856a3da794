// Broadcast: the root publishes its bytes chunk by chunk, for its host and for the first
// participant of each other host, which publishes them again for its own. A chunk passes through
// two phases (send, forward), or one if no host has members to forward to. Large data that can be
// read from the root's memory needs no chunks: see direct_movement.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/direct_movement.h"
#include "collectives/host_groups.h"
#include "collectives/pipeline.h"
#include "collectives/round_loop.h"
#include "collectives/segment_map.h"

namespace horoscale {
namespace {

bool Forwards(const HostGroups& hosts, uint32_t root) {
  for (uint32_t host = 0; host < hosts.count(); ++host) {
    if (host != hosts.HostOf(root) && hosts.members(host).size() > 1) return true;
  }
  return false;
}

// Within a host the root writes a chunk while the others read the previous one, so several smaller
// chunks finish earlier than one large one. Below this size another round costs more than it saves.
constexpr int64_t kLeastChunkBytes = 16 * 1024;
constexpr int64_t kChunksOfSmall = 8;

int64_t ChunkBytes(const Exchange& exchange, int64_t bytes) {
  const auto most = static_cast<int64_t>(exchange.chunk_bytes());
  if (!exchange.hosts().empty()) return most;
  const int64_t share = DivideUp(DivideUp(bytes, kChunksOfSmall), kLineBytes) * kLineBytes;
  return std::clamp(share, std::min(kLeastChunkBytes, most), most);
}

class Broadcast : public RoundLoop {
 public:
  Broadcast(Exchange& exchange, std::vector<uint32_t> participants, HostGroups hosts,
            BroadcastArgs args, Pipeline pipeline, int64_t chunk_bytes)
      : RoundLoop(exchange, std::move(participants), pipeline.rounds()),
        chunk_bytes_(chunk_bytes),
        root_(args.root),
        segments_(std::move(args.segments)),
        hosts_(std::move(hosts)),
        pipeline_(std::move(pipeline)),
        locals_(hosts_.members(hosts_.HostOf(self()))),
        in_root_host_(hosts_.HostOf(self()) == hosts_.HostOf(root_)),
        forwards_(!in_root_host_ && self() == locals_.front() && locals_.size() > 1),
        extents_(size()) {}

 private:
  enum Phase : int64_t { kSend, kForward };

  int64_t First(int64_t chunk) const { return chunk * chunk_bytes_; }
  int64_t Bytes(int64_t chunk) const {
    return std::min(chunk_bytes_, segments_.bytes() - First(chunk));
  }

  bool Send(int64_t round) override {
    const auto [phase, chunk] = pipeline_.At(round);
    if (phase == kForward) return !forwards_ || Forward(round, chunk);
    if (self() != root_) return true;
    std::byte* bank = Reserve(round);
    if (bank == nullptr) return false;
    segments_.Gather(bank, First(chunk), Bytes(chunk));
    for (uint32_t host = 0; host < hosts_.count(); ++host) {
      SetExtent(hosts_.members(host).front(), Bytes(chunk));
    }
    PublishToHost(round, chunk);
    return true;
  }

  bool Forward(int64_t round, int64_t chunk) {
    std::byte* bank = Reserve(round);
    const std::byte* received =
        bank == nullptr ? nullptr : Peek(pipeline_.RoundOf(kSend, chunk), root_);
    if (received == nullptr) return false;
    std::memcpy(bank, received, static_cast<size_t>(Bytes(chunk)));
    PublishToHost(round, chunk);
    segments_.Scatter(bank, First(chunk), Bytes(chunk));
    ++forwarded_chunks_;
    return true;
  }

  void PublishToHost(int64_t round, int64_t chunk) {
    for (uint32_t member : locals_) SetExtent(member, Bytes(chunk));
    PublishExtents(round, Bytes(chunk), extents_);
  }
  void SetExtent(uint32_t member, int64_t bytes) {
    extents_[member].bytes = static_cast<size_t>(bytes);
  }

  // Whether this member receives the chunk from the peer in this phase.
  bool ReceivesFrom(uint32_t peer, int64_t phase) const {
    if (in_root_host_ || self() == locals_.front()) return phase == kSend && peer == root_;
    return phase == kForward && peer == locals_.front();
  }

  Progress Receive(int64_t round) override {
    const auto [phase, index] = pipeline_.At(round);
    const int64_t chunk = index;
    if (forwards_) {  // forwarding also reads it
      return phase == kForward || chunk < forwarded_chunks_ ? Progress::kDone : Progress::kIdle;
    }
    return ReceiveFromEach(
        round, [&, phase = phase](uint32_t peer) { return ReceivesFrom(peer, phase); },
        [&](uint32_t, const std::byte* bytes) {
          segments_.Scatter(bytes, First(chunk), Bytes(chunk));
        });
  }

  // Copies the root's input to its output.
  bool LocalWork() override {
    if (self() != root_ || Bytes(copied_chunks_) <= 0) return false;
    segments_.CopyThrough(First(copied_chunks_), Bytes(copied_chunks_));
    ++copied_chunks_;
    return true;
  }

  const int64_t chunk_bytes_;
  const uint32_t root_;
  const SegmentMap segments_;
  const HostGroups hosts_;
  const Pipeline pipeline_;
  const std::vector<uint32_t>& locals_;  // participants on this host
  const bool in_root_host_;
  const bool forwards_;
  std::vector<Exchange::Extent> extents_;
  int64_t forwarded_chunks_ = 0;
  int64_t copied_chunks_ = 0;
};

int64_t BroadcastBytes(const BroadcastArgs& args) {
  int64_t bytes = 0;
  for (const Segment& segment : args.segments) bytes += segment.bytes;
  return bytes;
}

std::unique_ptr<Collective> MakeChunkedBroadcast(Exchange& exchange, BroadcastArgs args) {
  std::vector<uint32_t> participants = Participants(exchange, args.absent);
  HostGroups hosts(exchange, participants);
  const int64_t bytes = BroadcastBytes(args);
  const int64_t chunk_bytes = ChunkBytes(exchange, bytes);
  const int64_t chunks = participants.size() == 1 ? 0 : DivideUp(bytes, chunk_bytes);
  Pipeline pipeline(Forwards(hosts, args.root) ? 2 : 1, chunks, exchange.banks());
  if (!std::binary_search(participants.begin(), participants.end(), exchange.self())) {
    return std::make_unique<Bystander>(exchange, pipeline.rounds());
  }
  return std::make_unique<Broadcast>(exchange, std::move(participants), std::move(hosts),
                                     std::move(args), std::move(pipeline), chunk_bytes);
}

}  // namespace

std::unique_ptr<Collective> MakeBroadcast(Exchange& exchange, BroadcastArgs args) {
  if (MayBeDirect(exchange, args, BroadcastBytes(args))) {
    return MakeDirectBroadcast(exchange, std::move(args), MakeChunkedBroadcast);
  }
  return MakeChunkedBroadcast(exchange, std::move(args));
}

}  // namespace horoscale
