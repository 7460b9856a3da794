#include "support/collective_cases.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "collectives/fold.h"
#include "support/random_values.h"

namespace horoscale::testing {
namespace {

int64_t Pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::string Difference(const std::string& what, const Bytes& got, const Bytes& expected) {
  if (got == expected) return {};
  const size_t common = std::min(got.size(), expected.size());
  const auto at =
      std::mismatch(got.begin(), got.begin() + static_cast<ptrdiff_t>(common), expected.begin());
  return what + ": " + std::to_string(got.size()) + " bytes, expected " +
         std::to_string(expected.size()) + ", first difference at byte " +
         std::to_string(at.first - got.begin()) + "\n";
}

bool Contains(const std::vector<uint32_t>& list, uint32_t member) {
  return std::find(list.begin(), list.end(), member) != list.end();
}

std::string Numbers(const std::vector<uint32_t>& list) {
  std::string text;
  for (uint32_t number : list) text.append(text.empty() ? "" : ",").append(std::to_string(number));
  return "{" + text + "}";
}

std::string Travelling(std::optional<DataType> wire) {
  return wire ? " travelling as " + std::string(Name(*wire)) : "";
}

// Random sorted positions at which to split `total`, including both ends.
std::vector<int64_t> Cut(std::mt19937_64& random, int64_t total, int cuts) {
  std::vector<int64_t> ends = {0, total};
  for (int i = 0; i < cuts; ++i) ends.push_back(Pick(random, 0, total));
  std::sort(ends.begin(), ends.end());
  return ends;
}

std::vector<Segment> Segments(const std::vector<int64_t>& ends, const std::byte* in,
                              std::byte* out) {
  std::vector<Segment> segments;
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    segments.push_back({in == nullptr ? nullptr : in + ends[i],
                        out == nullptr ? nullptr : out + ends[i], ends[i + 1] - ends[i]});
  }
  return segments;
}

std::vector<int64_t> RandomSplits(std::mt19937_64& random, uint32_t members, int64_t rows) {
  std::vector<int64_t> splits(members);
  for (int64_t& split : splits)
    split = Pick(random, 0, 2) == 0 ? 0 : Pick(random, 0, rows) / members;
  return splits;
}

class AllreduceCase : public CollectiveCase {
 public:
  AllreduceCase(std::mt19937_64& random, const AllreduceCaseOptions& options)
      : options_(options), ends_(Cut(random, options.elements, options.cuts)) {
    const auto element = static_cast<int64_t>(SizeOf(options.reduction.dtype));
    for (int64_t& end : ends_) end *= element;
    std::vector<Bytes> contributions;
    std::vector<uint32_t> hosts;
    for (uint32_t m = 0; m < options.members; ++m) {
      in_.push_back(RandomValues(random, options.reduction.dtype, options.elements));
      if (Contains(options.absent, m)) continue;
      contributions.push_back(in_.back());
      if (!options.hosts.empty()) hosts.push_back(options.hosts[m]);
    }
    expected_ = ReferenceFold(options.reduction, contributions, hosts, options.wire);
    untouched_ = in_;
    out_.resize(options.members, Bytes(expected_.size()));
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    const bool absent = Contains(options_.absent, m);
    std::byte* in = absent ? nullptr : in_[m].data();
    std::byte* out = absent ? nullptr : options_.in_place ? in : out_[m].data();
    return MakeAllreduce(exchange, {.reduction = options_.reduction,
                                    .segments = Segments(ends_, in, out),
                                    .absent = options_.absent,
                                    .encoding = Encoding::Of(options_.wire)});
  }

  std::string Check() const override {
    std::string wrong;
    for (uint32_t m = 0; m < options_.members; ++m) {
      const std::string who = "member " + std::to_string(m);
      const bool absent = Contains(options_.absent, m);
      if (!absent) wrong += Difference(who, options_.in_place ? in_[m] : out_[m], expected_);
      if (absent || !options_.in_place) wrong += Difference(who + " input", in_[m], untouched_[m]);
    }
    return wrong;
  }

  std::string Describe() const override {
    const Reduction& r = options_.reduction;
    return "allreduce " + std::string(Name(r.op)) + " of " + std::to_string(options_.elements) +
           " " + std::string(Name(r.dtype)) + " prescale " + std::to_string(r.prescale) +
           " postscale " + std::to_string(r.postscale) + " members " +
           std::to_string(options_.members) + " on hosts " + Numbers(options_.hosts) + " absent " +
           Numbers(options_.absent) + Travelling(options_.wire) + " cuts " +
           std::to_string(options_.cuts) + (options_.in_place ? " in place" : "");
  }

 private:
  const AllreduceCaseOptions options_;
  std::vector<int64_t> ends_;
  std::vector<Bytes> in_;
  std::vector<Bytes> untouched_;
  std::vector<Bytes> out_;
  Bytes expected_;
};

class ReducescatterCase : public CollectiveCase {
 public:
  ReducescatterCase(std::mt19937_64& random, const RowsCaseOptions& options,
                    const Reduction& reduction)
      : members_(options.members), reduction_(reduction), wire_(options.wire) {
    const auto element = static_cast<int64_t>(SizeOf(reduction.dtype));
    if (options.splits) splits_ = RandomSplits(random, members_, options.max_rows);
    for (int i = 0; i < options.items; ++i) {
      Item item;
      item.rows = splits_.empty() ? Pick(random, 0, options.max_rows)
                                  : std::accumulate(splits_.begin(), splits_.end(), int64_t{0});
      const int64_t row_elements = Pick(random, 0, options.max_row_elements);
      item.row_bytes = row_elements * element;
      for (uint32_t m = 0; m < members_; ++m) {
        item.in.push_back(RandomValues(random, reduction.dtype, item.rows * row_elements));
        const int64_t rows = RowsOf(splits_, item.rows, members_, m).count;
        item.out.emplace_back(static_cast<size_t>(rows * item.row_bytes));
      }
      item.expected = ReferenceFold(reduction, item.in, options.hosts, wire_);
      items_.push_back(std::move(item));
    }
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    ReducescatterArgs args = {
        .reduction = reduction_, .items = {}, .encoding = Encoding::Of(wire_), .splits = splits_};
    for (Item& item : items_) {
      args.items.push_back({item.in[m].data(), item.out[m].data(), item.rows, item.row_bytes});
    }
    return MakeReducescatter(exchange, std::move(args));
  }

  std::string Check() const override {
    std::string wrong;
    for (const Item& item : items_) {
      Bytes all;
      for (const Bytes& out : item.out) all.insert(all.end(), out.begin(), out.end());
      wrong += Difference("results in a row", all, item.expected);
    }
    return wrong;
  }

  std::string Describe() const override {
    std::string text = "reducescatter " + std::string(Name(reduction_.op)) + " of " +
                       std::string(Name(reduction_.dtype)) + " members " +
                       std::to_string(members_) + Travelling(wire_);
    for (int64_t rows : splits_) text += " split " + std::to_string(rows);
    for (const Item& item : items_) {
      text += " rows " + std::to_string(item.rows) + "x" + std::to_string(item.row_bytes);
    }
    return text;
  }

 private:
  struct Item {
    int64_t rows;
    int64_t row_bytes;
    std::vector<Bytes> in;
    std::vector<Bytes> out;
    Bytes expected;
  };
  const uint32_t members_;
  const Reduction reduction_;
  const std::optional<DataType> wire_;
  std::vector<int64_t> splits_;
  std::vector<Item> items_;
};

class ReduceCase : public CollectiveCase {
 public:
  ReduceCase(std::mt19937_64& random, const AllreduceCaseOptions& options)
      : options_(options), ends_(Cut(random, options.elements, options.cuts)) {
    const auto element = static_cast<int64_t>(SizeOf(options.reduction.dtype));
    for (int64_t& end : ends_) end *= element;
    do {
      root_ = static_cast<uint32_t>(Pick(random, 0, options.members - 1));
    } while (Contains(options.absent, root_));
    std::vector<Bytes> contributions;
    std::vector<uint32_t> hosts;
    for (uint32_t m = 0; m < options.members; ++m) {
      in_.push_back(RandomValues(random, options.reduction.dtype, options.elements));
      if (Contains(options.absent, m)) continue;
      contributions.push_back(in_.back());
      if (!options.hosts.empty()) hosts.push_back(options.hosts[m]);
    }
    expected_ = ReferenceFold(options.reduction, contributions, hosts, options.wire);
    untouched_ = in_;
    out_.assign(options.members, Bytes(expected_.size()));
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    const bool is_absent = Contains(options_.absent, m);
    std::byte* in = is_absent ? nullptr : in_[m].data();
    // Even where nothing is to be written.
    std::byte* out = is_absent ? nullptr : options_.in_place ? in : out_[m].data();
    return MakeReduce(exchange, {.reduction = options_.reduction,
                                 .segments = Segments(ends_, in, out),
                                 .absent = options_.absent,
                                 .encoding = Encoding::Of(options_.wire),
                                 .root = root_});
  }

  std::string Check() const override {
    std::string wrong = Difference("root", options_.in_place ? in_[root_] : out_[root_], expected_);
    for (uint32_t m = 0; m < options_.members; ++m) {
      if (m != root_) {
        wrong +=
            Difference("member " + std::to_string(m) + " output", out_[m], Bytes(expected_.size()));
      }
      if (m == root_ && options_.in_place) continue;
      wrong += Difference("member " + std::to_string(m) + " input", in_[m], untouched_[m]);
    }
    return wrong;
  }

  std::string Describe() const override {
    const Reduction& r = options_.reduction;
    return "reduce to " + std::to_string(root_) + " " + std::string(Name(r.op)) + " of " +
           std::to_string(options_.elements) + " " + std::string(Name(r.dtype)) + " members " +
           std::to_string(options_.members) + " on hosts " + Numbers(options_.hosts) + " absent " +
           Numbers(options_.absent) + Travelling(options_.wire);
  }

 private:
  const AllreduceCaseOptions options_;
  std::vector<int64_t> ends_;
  uint32_t root_ = 0;
  std::vector<Bytes> in_;
  std::vector<Bytes> untouched_;
  std::vector<Bytes> out_;
  Bytes expected_;
};

class BroadcastCase : public CollectiveCase {
 public:
  BroadcastCase(std::mt19937_64& random, uint32_t members, int64_t bytes, int cuts,
                std::vector<uint32_t> absent)
      : absent_(std::move(absent)),
        ends_(Cut(random, bytes, cuts)),
        value_(RandomValues(random, DataType::kUint8, bytes)),
        in_place_(Pick(random, 0, 1) == 1),
        out_(members, Bytes(value_.size())) {
    do {
      root_ = static_cast<uint32_t>(Pick(random, 0, members - 1));
    } while (Contains(absent_, root_));
    if (in_place_) out_[root_] = value_;
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    std::byte* out = Contains(absent_, m) ? nullptr : out_[m].data();
    const std::byte* in = m != root_ ? nullptr : in_place_ ? out : value_.data();
    return MakeBroadcast(exchange,
                         {.root = root_, .segments = Segments(ends_, in, out), .absent = absent_});
  }

  std::string Check() const override {
    std::string wrong;
    for (uint32_t m = 0; m < out_.size(); ++m) {
      if (!Contains(absent_, m))
        wrong += Difference("member " + std::to_string(m), out_[m], value_);
    }
    return wrong;
  }

  std::string Describe() const override {
    return "broadcast of " + std::to_string(value_.size()) + " bytes from " +
           std::to_string(root_) + " members " + std::to_string(out_.size()) + " absent " +
           Numbers(absent_);
  }

 private:
  const std::vector<uint32_t> absent_;
  const std::vector<int64_t> ends_;
  const Bytes value_;
  const bool in_place_;
  uint32_t root_ = 0;
  std::vector<Bytes> out_;
};

// A member's memory for a result: none, of the right size, too small or too large. Bytes around the
// result must not change.
class CaseRoom {
 public:
  CaseRoom() = default;  // none
  CaseRoom(std::mt19937_64& random, int64_t rows, int64_t row_bytes) : rows_(rows) {
    const int64_t form = Pick(random, 0, 5);
    is_given_ = form > 1;
    if (form == 4) rows_ += Pick(random, 1, 3);
    if (form == 5) rows_ = std::max<int64_t>(rows_ - Pick(random, 1, 3), 0);
    fits_ = rows_ == rows;
    if (is_given_) memory_.resize(static_cast<size_t>(rows_ * row_bytes + 2 * kAround), kFill);
  }
  ResultRoom Get() {
    if (!is_given_) return {};
    return {memory_.data() + kAround, rows_};
  }
  bool takes_result() const { return is_given_ && fits_; }
  std::string Check(const std::string& who, const Bytes& expected) const {
    if (!is_given_) return "";
    Bytes right(memory_.size(), kFill);
    if (fits_) std::copy(expected.begin(), expected.end(), right.begin() + kAround);
    return Difference(who + " room", memory_, right);
  }

 private:
  static constexpr int64_t kAround = 100;
  static constexpr std::byte kFill{0x5a};
  int64_t rows_ = 0;
  bool is_given_ = false;
  bool fits_ = false;
  Bytes memory_;
};

std::string CheckResult(const std::string& who, const AllgatherResult& result,
                        const std::vector<int64_t>& rows, const Bytes& expected,
                        const CaseRoom& room = {}) {
  if (result.rows != rows) return who + ": wrong row counts\n";
  if (std::string wrong = room.Check(who, expected); !wrong.empty()) return wrong;
  if (room.takes_result()) return result.data == nullptr ? "" : who + ": needless memory\n";
  if (expected.empty()) return result.data == nullptr ? "" : who + ": memory for nothing\n";
  if (result.data == nullptr) return who + ": no result\n";
  if (reinterpret_cast<uintptr_t>(result.data.get()) % 64 != 0) return who + ": not aligned\n";
  return Difference(who, {result.data.get(), result.data.get() + expected.size()}, expected);
}

// Also gather, where only the root receives.
class AllgatherCase : public CollectiveCase {
 public:
  AllgatherCase(std::mt19937_64& random, const RowsCaseOptions& options,
                std::optional<uint32_t> root = {})
      : root_(root), results_(options.members) {
    for (int i = 0; i < options.items; ++i) {
      Item item;
      item.row_bytes =
          Pick(random, 0, options.max_row_elements) * static_cast<int64_t>(SizeOf(options.dtype));
      for (uint32_t m = 0; m < options.members; ++m) {
        item.rows.push_back(Pick(random, 0, 2) == 0 ? 0 : Pick(random, 0, options.max_rows));
        const int64_t bytes = item.rows.back() * item.row_bytes;
        item.in.push_back(RandomValues(random, DataType::kUint8, bytes));
        item.expected.insert(item.expected.end(), item.in.back().begin(), item.in.back().end());
      }
      const int64_t rows = std::accumulate(item.rows.begin(), item.rows.end(), int64_t{0});
      for (uint32_t m = 0; m < options.members; ++m) {
        item.rooms.emplace_back(random, rows, item.row_bytes);
      }
      items_.push_back(std::move(item));
    }
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    AllgatherArgs args = {.items = {}, .results = &results_[m]};
    for (Item& item : items_) {
      args.items.push_back({item.in[m].data(), item.rows[m], item.row_bytes, item.rooms[m].Get()});
    }
    if (root_) return MakeGather(exchange, {*root_, std::move(args.items), args.results});
    return MakeAllgather(exchange, std::move(args));
  }

  std::string Check() const override {
    std::string wrong;
    for (size_t m = 0; m < results_.size(); ++m) {
      if (results_[m].size() != items_.size()) return "wrong number of results";
      const bool empty = root_ && *root_ != m;
      for (size_t i = 0; i < items_.size(); ++i) {
        wrong += CheckResult("member " + std::to_string(m) + " tensor " + std::to_string(i),
                             results_[m][i],
                             empty ? std::vector<int64_t>(results_.size()) : items_[i].rows,
                             empty ? Bytes() : items_[i].expected, items_[i].rooms[m]);
      }
    }
    return wrong;
  }

  std::string Describe() const override {
    std::string text = root_ ? "gather to " + std::to_string(*root_) : "allgather";
    text += " members " + std::to_string(results_.size());
    for (const Item& item : items_) {
      text += " rows of " + std::to_string(item.row_bytes) + ":";
      for (int64_t rows : item.rows) text.append(" ").append(std::to_string(rows));
    }
    return text;
  }

 private:
  struct Item {
    int64_t row_bytes;
    std::vector<int64_t> rows;
    std::vector<Bytes> in;
    Bytes expected;
    std::vector<CaseRoom> rooms;  // by member
  };
  const std::optional<uint32_t> root_;
  std::vector<Item> items_;
  std::vector<std::vector<AllgatherResult>> results_;
};

class ScatterCase : public CollectiveCase {
 public:
  ScatterCase(std::mt19937_64& random, const RowsCaseOptions& options)
      : root_(static_cast<uint32_t>(Pick(random, 0, options.members - 1))),
        row_bytes_(Pick(random, 0, options.max_row_elements) *
                   static_cast<int64_t>(SizeOf(options.dtype))),
        splits_(RandomSplits(random, options.members, options.max_rows)),
        results_(options.members) {
    for (int64_t rows : splits_) {
      expected_.push_back(RandomValues(random, DataType::kUint8, rows * row_bytes_));
      in_.insert(in_.end(), expected_.back().begin(), expected_.back().end());
    }
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    if (m != root_) return MakeScatter(exchange, {root_, row_bytes_, nullptr, {}, &results_[m]});
    return MakeScatter(exchange, {root_, row_bytes_, in_.data(), splits_, &results_[m]});
  }

  std::string Check() const override {
    std::string wrong;
    for (size_t m = 0; m < results_.size(); ++m) {
      std::vector<int64_t> received(results_.size());
      received[root_] = splits_[m];
      wrong += CheckResult("member " + std::to_string(m), results_[m], received, expected_[m]);
    }
    return wrong;
  }

  std::string Describe() const override {
    std::string text = "scatter from " + std::to_string(root_) + " members " +
                       std::to_string(results_.size()) + " rows of " + std::to_string(row_bytes_);
    for (int64_t rows : splits_) text.append(" ").append(std::to_string(rows));
    return text;
  }

 private:
  const uint32_t root_;
  const int64_t row_bytes_;
  const std::vector<int64_t> splits_;
  Bytes in_;
  std::vector<Bytes> expected_;
  std::vector<AllgatherResult> results_;
};

class AlltoallCase : public CollectiveCase {
 public:
  AlltoallCase(std::mt19937_64& random, const RowsCaseOptions& options)
      : row_bytes_(Pick(random, 0, options.max_row_elements) *
                   static_cast<int64_t>(SizeOf(options.dtype))),
        splits_(options.members),
        received_(options.members),
        in_(options.members),
        expected_(options.members),
        results_(options.members) {
    for (uint32_t from = 0; from < options.members; ++from) {
      for (uint32_t to = 0; to < options.members; ++to) {
        const int64_t rows = Pick(random, 0, 2) == 0 ? 0 : Pick(random, 0, options.max_rows);
        const Bytes part = RandomValues(random, DataType::kUint8, rows * row_bytes_);
        splits_[from].push_back(rows);
        received_[to].push_back(rows);
        in_[from].insert(in_[from].end(), part.begin(), part.end());
        expected_[to].insert(expected_[to].end(), part.begin(), part.end());
      }
    }
    for (const std::vector<int64_t>& received : received_) {
      const int64_t rows = std::accumulate(received.begin(), received.end(), int64_t{0});
      rooms_.emplace_back(random, rows, row_bytes_);
    }
  }

  std::unique_ptr<Collective> Make(Exchange& exchange) override {
    const uint32_t m = exchange.self();
    return MakeAlltoall(exchange,
                        {in_[m].data(), row_bytes_, splits_[m], &results_[m], rooms_[m].Get()});
  }

  std::string Check() const override {
    std::string wrong;
    for (size_t m = 0; m < results_.size(); ++m) {
      wrong += CheckResult("member " + std::to_string(m), results_[m], received_[m], expected_[m],
                           rooms_[m]);
    }
    return wrong;
  }

  std::string Describe() const override {
    return "alltoall members " + std::to_string(results_.size()) + " rows of " +
           std::to_string(row_bytes_);
  }

 private:
  const int64_t row_bytes_;
  std::vector<std::vector<int64_t>> splits_;
  std::vector<std::vector<int64_t>> received_;
  std::vector<Bytes> in_;
  std::vector<Bytes> expected_;
  std::vector<AllgatherResult> results_;
  std::vector<CaseRoom> rooms_;  // by member
};

// Sometimes, and only where there is something to reduce.
std::optional<DataType> RandomWire(std::mt19937_64& random, DataType dtype) {
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) return {};
  if (Pick(random, 0, 1) == 0) return {};
  return Pick(random, 0, 1) == 0 ? DataType::kFloat16 : DataType::kBfloat16;
}

std::vector<uint32_t> RandomAbsent(std::mt19937_64& random, uint32_t members) {
  std::vector<uint32_t> absent;
  if (Pick(random, 0, 3) != 0) return absent;
  const auto present = static_cast<uint32_t>(Pick(random, 0, members - 1));
  for (uint32_t m = 0; m < members; ++m) {
    if (m != present && Pick(random, 0, 1) == 0) absent.push_back(m);
  }
  std::shuffle(absent.begin(), absent.end(), random);
  return absent;
}

}  // namespace

std::unique_ptr<CollectiveCase> MakeAllreduceCase(std::mt19937_64& random,
                                                  const AllreduceCaseOptions& options) {
  return std::make_unique<AllreduceCase>(random, options);
}
std::unique_ptr<CollectiveCase> MakeReducescatterCase(std::mt19937_64& random,
                                                      const RowsCaseOptions& options,
                                                      const Reduction& reduction) {
  return std::make_unique<ReducescatterCase>(random, options, reduction);
}
std::unique_ptr<CollectiveCase> MakeAllgatherCase(std::mt19937_64& random,
                                                  const RowsCaseOptions& options) {
  return std::make_unique<AllgatherCase>(random, options);
}
std::unique_ptr<CollectiveCase> MakeReduceCase(std::mt19937_64& random,
                                               const AllreduceCaseOptions& options) {
  return std::make_unique<ReduceCase>(random, options);
}
std::unique_ptr<CollectiveCase> MakeGatherCase(std::mt19937_64& random,
                                               const RowsCaseOptions& options) {
  const auto root = static_cast<uint32_t>(Pick(random, 0, options.members - 1));
  return std::make_unique<AllgatherCase>(random, options, root);
}
std::unique_ptr<CollectiveCase> MakeScatterCase(std::mt19937_64& random,
                                                const RowsCaseOptions& options) {
  return std::make_unique<ScatterCase>(random, options);
}
std::unique_ptr<CollectiveCase> MakeAlltoallCase(std::mt19937_64& random,
                                                 const RowsCaseOptions& options) {
  return std::make_unique<AlltoallCase>(random, options);
}
std::unique_ptr<CollectiveCase> MakeBroadcastCase(std::mt19937_64& random, uint32_t members,
                                                  int64_t bytes, int cuts,
                                                  std::vector<uint32_t> absent) {
  return std::make_unique<BroadcastCase>(random, members, bytes, cuts, std::move(absent));
}

Reduction RandomReduction(std::mt19937_64& random, int64_t participants) {
  Reduction r;
  do {
    r.dtype = static_cast<DataType>(Pick(random, 0, kNumDataTypes - 1));
    r.op = static_cast<ReduceOp>(Pick(random, 0, kNumReduceOps - 1));
  } while (!CheckReduction(r).ok());
  if (Pick(random, 0, 3) == 0) r.prescale = 0.7;
  if (Pick(random, 0, 3) == 0) r.postscale = -1.9;
  r.divisor = participants;
  return r;
}

std::unique_ptr<CollectiveCase> MakeRandomCase(std::mt19937_64& random, uint32_t members,
                                               int64_t max_bytes,
                                               const std::vector<uint32_t>& hosts) {
  const int cuts = static_cast<int>(Pick(random, 0, 6));
  const int64_t kind = Pick(random, 0, 9);
  if (kind <= 2 || kind == 7) {
    AllreduceCaseOptions options = {
        .members = members, .absent = RandomAbsent(random, members), .hosts = hosts};
    options.reduction =
        RandomReduction(random, members - static_cast<int64_t>(options.absent.size()));
    const auto element = static_cast<int64_t>(SizeOf(options.reduction.dtype));
    const int64_t limit = kind == 0 ? std::min<int64_t>(max_bytes, 1000) : max_bytes;
    options.elements = Pick(random, 0, limit / element);
    options.cuts = cuts;
    options.in_place = Pick(random, 0, 1) == 1;
    options.wire = RandomWire(random, options.reduction.dtype);
    return kind == 7 ? MakeReduceCase(random, options) : MakeAllreduceCase(random, options);
  }
  if (kind == 3) {
    std::vector<uint32_t> absent = RandomAbsent(random, members);
    return MakeBroadcastCase(random, members, Pick(random, 0, max_bytes), cuts, std::move(absent));
  }
  const Reduction reduction = RandomReduction(random, members);
  RowsCaseOptions options = {.members = members, .dtype = reduction.dtype, .hosts = hosts};
  options.splits = Pick(random, 0, 1) == 1;
  options.items = kind == 6 ? 1 : static_cast<int>(Pick(random, 0, 3));
  options.max_row_elements = Pick(random, 0, 1) == 0 ? 3 : 100;
  options.max_rows = max_bytes /
                     (options.max_row_elements * static_cast<int64_t>(SizeOf(options.dtype)) *
                      (kind == 6 ? members : 1)) /
                     3;
  options.wire = RandomWire(random, options.dtype);
  if (kind == 4) return MakeReducescatterCase(random, options, reduction);
  if (kind == 5) return MakeAllgatherCase(random, options);
  if (kind == 8) return MakeGatherCase(random, options);
  if (kind == 9) return MakeScatterCase(random, options);
  return MakeAlltoallCase(random, options);
}

}  // namespace horoscale::testing
