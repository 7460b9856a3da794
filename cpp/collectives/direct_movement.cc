#include "collectives/direct_movement.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/segment_map.h"

namespace horoscale {
namespace {

// Bytes per step, before other operations get a turn.
constexpr int64_t kMovedBytes = 512 * 1024;

class DirectMovement : public Collective {
 public:
  DirectMovement(Exchange& exchange, MovementArgs args)
      : exchange_(exchange),
        moves_(std::move(args.moves)),
        own_(std::move(args.own)),
        done_(exchange, std::move(args.readers)) {
    // Starts with the next higher member, so that members read from different ones.
    const auto distance = [&](const Move& move) {
      return (move.from + exchange.size() - exchange.self()) % exchange.size();
    };
    std::stable_sort(moves_.begin(), moves_.end(),
                     [&](const Move& a, const Move& b) { return distance(a) < distance(b); });
  }

  Result<Progress> Step() override {
    if (next_ < moves_.size()) {
      HS_RETURN_IF_ERROR(MoveSome());
      return is_withdrawn_ ? Progress::kIdle : Progress::kAdvanced;
    }
    // Before the member's own copies, because others may wait for it.
    const bool told = moves_.empty() || done_.Tell();
    if (copied_ < own_.bytes()) {
      const int64_t bytes = std::min(kMovedBytes, own_.bytes() - copied_);
      own_.CopyThrough(copied_, bytes);
      copied_ += bytes;
      return Progress::kAdvanced;
    }
    if (!told || !done_.Heard()) return Progress::kIdle;
    return Progress::kDone;
  }

 private:
  Status MoveSome() {
    for (int64_t budget = kMovedBytes; budget > 0 && next_ < moves_.size();) {
      const Move& move = moves_[next_];
      const int64_t bytes = std::min(budget, move.bytes - moved_);
      const Status status = Read(move, bytes);
      // That member's operation has failed, and this one will too, as soon as this member learns
      // the reason.
      is_withdrawn_ = exchange_.HasWithdrawn(move.from);
      if (is_withdrawn_) return Status::Ok();
      HS_RETURN_IF_ERROR(status);
      budget -= bytes;
      moved_ += bytes;
      if (moved_ < move.bytes) continue;
      ++next_;
      moved_ = 0;
    }
    return Status::Ok();
  }

  Status Read(const Move& move, int64_t bytes) {
    const auto length = static_cast<size_t>(bytes);
    if (move.source == nullptr) {
      return exchange_.shared_memory()->ReadPrivate(
          move.from, move.address + static_cast<uint64_t>(moved_), move.to + moved_, length);
    }
    std::memcpy(move.to + moved_, move.source + moved_, length);
    return Status::Ok();
  }

  Exchange& exchange_;
  std::vector<Move> moves_;
  const SegmentMap own_;
  DoneRound done_;
  size_t next_ = 0;    // of moves_
  int64_t moved_ = 0;  // of that
  int64_t copied_ = 0;
  bool is_withdrawn_ = false;
};

// All announce whether they can read private memory; the root also announces where its segments
// are.
class AskingBroadcast : public Collective {
 public:
  AskingBroadcast(Exchange& exchange, BroadcastArgs args, BroadcastMaker otherwise)
      : exchange_(exchange),
        args_(std::move(args)),
        otherwise_(otherwise),
        is_root_(exchange.self() == args_.root),
        places_(exchange, OwnPlaces()) {}

  Result<Progress> Step() override {
    if (chosen_) return chosen_->Step();
    if (!places_.Tell()) return Progress::kIdle;
    const Place* const root = places_.Heard(args_.root);
    if (root == nullptr) return Progress::kIdle;
    const bool all_shared = std::all_of(root + 1, root + 1 + args_.segments.size(),
                                        [](const Place& place) { return place.is_shared(); });
    bool all_readable = std::all_of(root + 1, root + 1 + args_.segments.size(),
                                    [](const Place& place) { return place.is_readable(); });
    // Don't wait for answers that can't change the decision.
    if (!all_shared && all_readable) {
      for (uint32_t member = 0; member < exchange_.size(); ++member) {
        const Place* const answer = places_.Heard(member);
        if (answer == nullptr) return Progress::kIdle;
        all_readable &= answer->address != 0;
      }
    }
    const bool direct = all_shared || all_readable;
    MovementArgs movement;
    if (direct) {
      Result<MovementArgs> made = Movement(root + 1);
      if (!made.ok()) return made.status();
      movement = made.TakeValue();
    }
    places_.Release();
    chosen_ = direct ? MakeDirectMovement(exchange_, std::move(movement))
                     : otherwise_(exchange_, std::move(args_));
    return Progress::kAdvanced;
  }

 private:
  std::vector<Place> OwnPlaces() const {
    std::vector<Place> places = {ReaderPlace(exchange_)};
    if (!is_root_) return places;
    std::vector<Input> inputs;
    for (const Segment& segment : args_.segments) inputs.push_back({segment.in, segment.bytes});
    const std::vector<Place> own = PlacesOf(exchange_, inputs);
    places.insert(places.end(), own.begin(), own.end());
    return places;
  }

  Result<MovementArgs> Movement(const Place* places) {
    MovementArgs movement;
    if (is_root_) {
      movement.own = args_.segments;
      for (uint32_t member = 0; member < exchange_.size(); ++member) {
        if (member != exchange_.self()) movement.readers.push_back(member);
      }
      return movement;
    }
    for (size_t i = 0; i < args_.segments.size(); ++i) {
      const Segment& segment = args_.segments[i];
      if (segment.bytes == 0) continue;
      Result<Move> move = MoveFrom(exchange_, args_.root, places[i], 0, segment.out, segment.bytes);
      if (!move.ok()) return move.status();
      movement.moves.push_back(*move);
    }
    return movement;
  }

  Exchange& exchange_;
  BroadcastArgs args_;
  const BroadcastMaker otherwise_;
  const bool is_root_;
  PlaceRound places_;
  std::unique_ptr<Collective> chosen_;
};

}  // namespace

std::unique_ptr<Collective> MakeDirectMovement(Exchange& exchange, MovementArgs args) {
  return std::make_unique<DirectMovement>(exchange, std::move(args));
}

bool MayBeDirect(const Exchange& exchange, const BroadcastArgs& args, int64_t bytes) {
  return HasReachableMemory(exchange) && bytes >= LeastDirectBytes(exchange) &&
         args.absent.empty() &&
         (args.segments.size() + 1) * sizeof(Place) <= exchange.chunk_bytes();
}

std::unique_ptr<Collective> MakeDirectBroadcast(Exchange& exchange, BroadcastArgs args,
                                                BroadcastMaker otherwise) {
  return std::make_unique<AskingBroadcast>(exchange, std::move(args), otherwise);
}

}  // namespace horoscale
