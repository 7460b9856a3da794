#include "collectives/direct_reducescatter.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/fold.h"
#include "collectives/member_memory.h"

namespace horoscale {
namespace {

// Bytes per step, before other operations get a turn.
constexpr int64_t kFoldedBytes = 256 * 1024;
constexpr int64_t kPageBytes = 4096;

// One item's rows of this member.
struct OwnRows {
  std::vector<Move> sources;  // by member
  std::byte* out;
  int64_t bytes;
};

class DirectReducescatter : public Collective {
 public:
  // `readers`: the other members that own any rows.
  DirectReducescatter(Exchange& exchange, const Reduction& reduction, std::vector<OwnRows> items,
                      std::vector<uint32_t> readers)
      : exchange_(exchange),
        reduction_(reduction),
        element_bytes_(static_cast<int64_t>(SizeOf(reduction.dtype))),
        block_bytes_(std::max(kFoldedBytes / exchange.size() / kPageBytes, int64_t{1}) *
                     kPageBytes),
        items_(std::move(items)),
        done_(exchange, std::move(readers)) {}

  Result<Progress> Step() override {
    if (is_withdrawn_) return Progress::kIdle;
    if (next_ < items_.size()) {
      const Status status = FoldSome();
      for (uint32_t member = 0; member < exchange_.size(); ++member) {
        // That member's operation has failed, and this one will too, as soon as this member learns
        // the reason.
        is_withdrawn_ |= exchange_.HasWithdrawn(member);
      }
      if (is_withdrawn_) return Progress::kIdle;
      if (!status.ok()) return status;
      return Progress::kAdvanced;
    }
    if (!items_.empty() && !done_.Tell()) return Progress::kIdle;
    return done_.Heard() ? Progress::kDone : Progress::kIdle;
  }

 private:
  Status FoldSome() {
    const OwnRows& item = items_[next_];
    const int64_t bytes = std::min(block_bytes_, item.bytes - folded_);
    std::vector<const std::byte*> sources;
    for (const Move& source : item.sources) {
      if (source.source != nullptr) {
        sources.push_back(source.source + folded_);
        continue;
      }
      if (read_ == nullptr) {
        read_ = std::make_unique_for_overwrite<std::byte[]>(
            static_cast<size_t>(block_bytes_ * exchange_.size()));
      }
      std::byte* const block = read_.get() + source.from * block_bytes_;
      HS_RETURN_IF_ERROR(exchange_.shared_memory()->ReadPrivate(
          source.from, source.address + static_cast<uint64_t>(folded_), block,
          static_cast<size_t>(bytes)));
      sources.push_back(block);
    }
    Fold(reduction_, item.out + folded_, sources, bytes / element_bytes_);
    folded_ += bytes;
    if (folded_ == item.bytes) {
      ++next_;
      folded_ = 0;
    }
    return Status::Ok();
  }

  Exchange& exchange_;
  const Reduction reduction_;
  const int64_t element_bytes_;
  const int64_t block_bytes_;         // folded at a time, of each member
  const std::vector<OwnRows> items_;  // none is empty
  DoneRound done_;
  size_t next_ = 0;                    // of items_
  int64_t folded_ = 0;                 // of that
  bool is_withdrawn_ = false;          // a withdrawn tensor may have changed
  std::unique_ptr<std::byte[]> read_;  // a block of each member's private memory
};

int64_t InputBytes(const ReducescatterArgs& args) {
  int64_t bytes = 0;
  for (const ReducescatterItem& item : args.items) bytes += item.rows * item.row_bytes;
  return bytes;
}

// All announce whether they can read private memory, and where their inputs are.
class AskingReducescatter : public Collective {
 public:
  AskingReducescatter(Exchange& exchange, ReducescatterArgs args, ReducescatterMaker otherwise)
      : exchange_(exchange),
        args_(std::move(args)),
        otherwise_(otherwise),
        places_(exchange, OwnPlaces()) {}

  Result<Progress> Step() override {
    if (chosen_) return chosen_->Step();
    if (!places_.Tell()) return Progress::kIdle;
    for (; asked_ < exchange_.size(); ++asked_) {
      const Place* const answer = places_.Heard(asked_);
      if (answer == nullptr) return Progress::kIdle;
      all_readable_ &= answer->address != 0;
      inputs_.emplace_back(answer + 1, answer + 1 + args_.items.size());
      all_shared_ &= std::all_of(inputs_.back().begin(), inputs_.back().end(),
                                 [](const Place& place) { return place.is_shared(); });
      all_readable_ &= std::all_of(inputs_.back().begin(), inputs_.back().end(),
                                   [](const Place& place) { return place.is_readable(); });
    }
    places_.Release();
    if (!all_shared_ && !all_readable_) {
      chosen_ = otherwise_(exchange_, std::move(args_));
      return Progress::kAdvanced;
    }
    Result<std::vector<OwnRows>> items = Items();
    if (!items.ok()) return items.status();
    chosen_ = std::make_unique<DirectReducescatter>(exchange_, args_.reduction, items.TakeValue(),
                                                    Readers());
    return Progress::kAdvanced;
  }

 private:
  std::vector<Place> OwnPlaces() const {
    std::vector<Place> places = {ReaderPlace(exchange_)};
    std::vector<Input> inputs;
    for (const ReducescatterItem& item : args_.items) {
      inputs.push_back({item.in, item.rows * item.row_bytes});
    }
    const std::vector<Place> own = PlacesOf(exchange_, inputs);
    places.insert(places.end(), own.begin(), own.end());
    return places;
  }

  Result<std::vector<OwnRows>> Items() const {
    std::vector<OwnRows> items;
    for (size_t i = 0; i < args_.items.size(); ++i) {
      const ReducescatterItem& item = args_.items[i];
      const RowRange rows = args_.RowsFor(item, exchange_.size(), exchange_.self());
      const int64_t bytes = rows.count * item.row_bytes;
      const int64_t skip = rows.first * item.row_bytes;
      if (bytes == 0) continue;
      items.push_back({{}, item.out, bytes});
      for (uint32_t member = 0; member < exchange_.size(); ++member) {
        if (member == exchange_.self()) {
          items.back().sources.push_back({.from = member, .source = item.in + skip});
          continue;
        }
        const Result<Move> move =
            MoveFrom(exchange_, member, inputs_[member][i], skip, nullptr, bytes);
        if (!move.ok()) return move.status();
        items.back().sources.push_back(*move);
      }
    }
    return items;
  }

  std::vector<uint32_t> Readers() const {
    std::vector<uint32_t> readers;
    for (uint32_t member = 0; member < exchange_.size(); ++member) {
      const auto has_rows = [&](const ReducescatterItem& item) {
        return args_.RowsFor(item, exchange_.size(), member).count * item.row_bytes > 0;
      };
      if (member != exchange_.self() &&
          std::any_of(args_.items.begin(), args_.items.end(), has_rows)) {
        readers.push_back(member);
      }
    }
    return readers;
  }

  Exchange& exchange_;
  ReducescatterArgs args_;
  const ReducescatterMaker otherwise_;
  PlaceRound places_;
  std::vector<std::vector<Place>> inputs_;  // by member and item
  bool all_shared_ = true;
  bool all_readable_ = true;
  uint32_t asked_ = 0;
  std::unique_ptr<Collective> chosen_;
};

}  // namespace

bool MayBeDirect(const Exchange& exchange, const ReducescatterArgs& args) {
  return HasReachableMemory(exchange) && InputBytes(args) >= LeastDirectBytes(exchange) &&
         (args.items.size() + 1) * sizeof(Place) <= exchange.chunk_bytes();
}

std::unique_ptr<Collective> MakeDirectReducescatter(Exchange& exchange, ReducescatterArgs args,
                                                    ReducescatterMaker otherwise) {
  return std::make_unique<AskingReducescatter>(exchange, std::move(args), otherwise);
}

}  // namespace horoscale
