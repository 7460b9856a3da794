// What every transport guarantees, over MPI: each process that mpirun starts is a rank. Exits with
// an error at the first violation, and prints "kept on rank N" at the end.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "platform/deadline.h"
#include "transport/mpi/mpi_transport.h"

namespace horoscale {
namespace {

constexpr double kPatience = 60;

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                                 \
    }                                                                                \
  } while (0)

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  std::minstd_rand random(seed + 1);
  for (std::byte& b : pattern) b = static_cast<std::byte>(random() >> 8);
  return pattern;
}

class Inbox : public TransportSink {
 public:
  void OnFrame(int from, const FrameHeader& header, std::span<const std::byte> payload) override {
    CHECK(!lost.contains(from));
    if (header.kind == FrameKind::kPlan) {
      ++meetings[from];
      return;
    }
    frames[from].emplace_back(header, std::vector<std::byte>(payload.begin(), payload.end()));
  }
  void OnRankLost(int rank, const Status& reason) override {
    CHECK(reason.code() == StatusCode::kRankFailed);
    CHECK(lost.emplace(rank, frames[rank].size()).second);
  }
  std::map<int, std::vector<std::pair<FrameHeader, std::vector<std::byte>>>> frames;
  std::map<int, uint32_t> meetings;  // sent by Meet()
  std::map<int, size_t> lost;        // the number of its frames by then
};

class Rank {
 public:
  explicit Rank(std::unique_ptr<MpiTransport> transport) : transport_(std::move(transport)) {
    for (int rank = 0; rank < transport_->size(); ++rank) ranks_.push_back(rank);
  }

  template <typename Condition>
  void Until(Condition condition) {
    const Deadline deadline = Deadline::After(kPatience);
    while (!condition()) {
      CHECK(!deadline.Passed());
      if (!transport_->Poll(inbox_)) transport_->Sleep(0.01);
    }
  }

  void FramesArriveWholeAndInOrder() {
    constexpr uint32_t kFrames = 300;
    const auto length = [](uint32_t i) { return i % 50 == 49 ? 300'000u : i * 37 % 9000; };
    for (uint32_t i = 0; i < kFrames; ++i) {
      for (const int to : others()) {
        transport_->Send(to, {FrameKind::kReport, {i, 2}}, Pattern(length(i), i));
      }
    }
    Until([&] {
      for (const int from : others()) {
        if (inbox_.frames[from].size() < kFrames) return false;
      }
      return !transport_->HasUnsent();
    });
    for (const int from : others()) {
      for (uint32_t i = 0; i < kFrames; ++i) {
        const auto& [header, payload] = inbox_.frames[from][i];
        CHECK(header.kind == FrameKind::kReport && header.channel == (ChannelId{i, 2}));
        CHECK(payload == Pattern(length(i), i));
      }
    }
    Meet();
  }

  // Chunks of all sizes; each reader receives a part.
  void RoundsCarryWhatWasPublished() {
    constexpr uint64_t kRounds = 200;
    auto exchange = Open({1, 1});
    const uint32_t self = exchange->self();
    const auto size_of = [&](uint64_t round, uint32_t member) -> size_t {
      return (round * 7919 + member * 131) % (exchange->chunk_bytes() + 1);
    };
    const auto content = [&](uint64_t round, uint32_t member) {
      return Pattern(size_of(round, member), static_cast<uint32_t>(round * 8 + member));
    };
    const auto part = [&](size_t bytes, uint32_t reader) {
      return Exchange::Extent{bytes / (reader + 2), bytes / 2};
    };
    // A member that is sent nothing doesn't look for it.
    const auto is_read = [&](uint64_t round, uint32_t member) {
      return part(size_of(round, member), self).bytes > 0;
    };
    std::mt19937 random(self);
    uint64_t published = 0;
    uint64_t released = 0;
    Until([&] {
      if (published < kRounds && random() % 3 != 0) {
        if (std::byte* const space = exchange->Reserve(published)) {
          const auto bytes = content(published, self);
          std::copy(bytes.begin(), bytes.end(), space);
          std::vector<Exchange::Extent> extents;
          for (uint32_t m = 0; m < exchange->size(); ++m) extents.push_back(part(bytes.size(), m));
          exchange->Publish(published++, bytes.size(), extents);
        }
      }
      bool all = released < kRounds;
      for (uint32_t m = 0; m < exchange->size() && all; ++m) {
        all = !is_read(released, m) || exchange->Peek(released, m) != nullptr;
      }
      for (uint32_t m = 0; m < exchange->size() && all; ++m) {
        if (!is_read(released, m)) continue;
        const auto bytes = content(released, m);
        const auto [offset, length] = part(bytes.size(), self);
        CHECK(std::memcmp(exchange->Peek(released, m) + offset, bytes.data() + offset, length) ==
              0);
      }
      if (all) exchange->Release(released++);
      return published == kRounds && released == kRounds;
    });
    Meet();
  }

  // A bank is not reused before all readers have released it.
  void SpaceIsGrantedByRelease() {
    auto exchange = Open({2, 1});
    const uint64_t banks = exchange->banks();
    if (transport_->rank() == 0) {
      for (uint64_t round = 0; round < banks; ++round) {
        CHECK(exchange->Reserve(round) != nullptr);
        exchange->Publish(round, 8);
      }
      exchange->Release(banks - 1);
    }
    Meet();
    if (transport_->rank() == 0) CHECK(exchange->Reserve(banks) == nullptr);
    Meet();
    if (transport_->rank() != 0) exchange->Release(0);
    if (transport_->rank() == 0) {
      Until([&] { return exchange->Reserve(banks) != nullptr; });
      CHECK(exchange->Reserve(banks + 1) == nullptr);
    }
    Meet();
  }

  // Members open and close at different times, and a late chunk does not reach the next channel.
  void ChannelsComeAndGo() {
    for (uint32_t incarnation = 0; incarnation < 300; ++incarnation) {
      auto exchange = Open({3, incarnation});
      std::byte* const space = exchange->Reserve(0);
      CHECK(space != nullptr);
      std::memcpy(space, &incarnation, sizeof(incarnation));
      const size_t bytes = incarnation % 3 == 0 ? exchange->chunk_bytes() : sizeof(incarnation);
      exchange->Publish(0, bytes);
      const uint32_t next = (exchange->self() + 1) % exchange->size();
      const std::byte* chunk = nullptr;
      Until([&] { return (chunk = exchange->Peek(0, next)) != nullptr; });
      CHECK(std::memcmp(chunk, &incarnation, sizeof(incarnation)) == 0);
    }
    Meet();
  }

  // Rank 0 leaves first; each of the others receives its goodbye once.
  void GoodbyeComesLast() {
    const auto last = Pattern(30, 2);
    if (transport_->rank() != 0) {
      Until([&] { return inbox_.lost.contains(0); });
      CHECK(inbox_.lost[0] == inbox_.frames[0].size());
      CHECK(inbox_.frames[0].back().first.kind == FrameKind::kGoodbye);
      CHECK(inbox_.frames[0].back().second == last);
    }
    transport_->Close(last, kPatience);
    CHECK(!transport_->HasUnsent());
  }

 private:
  std::vector<int> others() const {
    std::vector<int> all = ranks_;
    std::erase(all, transport_->rank());
    return all;
  }

  std::unique_ptr<Exchange> Open(ChannelId channel) {
    auto exchange = transport_->Open(channel, ranks_);
    CHECK(exchange.ok());
    Until([&] { return (*exchange)->Reserve(0) != nullptr; });
    return exchange.TakeValue();
  }

  // A barrier made of frames.
  void Meet() {
    ++meetings_;
    for (const int to : others()) transport_->Send(to, {FrameKind::kPlan, {}}, {});
    Until([&] {
      for (const int from : others()) {
        if (inbox_.meetings[from] < meetings_) return false;
      }
      return true;
    });
  }

  std::unique_ptr<MpiTransport> transport_;
  std::vector<int> ranks_;
  Inbox inbox_;
  uint32_t meetings_ = 0;
};

int Run() {
  const auto mpi = MpiLibrary::Open();
  CHECK(mpi.ok());
  CHECK((*mpi)->Initialize().ok());
  auto comm =
      MpiCommunicator::Duplicate(**mpi, (*mpi)->handles().comm_world, Deadline::After(kPatience));
  CHECK(comm.ok());
  const int number = (*comm)->rank();
  // The ranks claim to be on two hosts.
  std::vector<uint32_t> hosts(static_cast<size_t>((*comm)->size()));
  for (size_t r = 0; r < hosts.size(); ++r) hosts[r] = r % 2;
  auto transport = MpiTransport::Create(comm.TakeValue(), std::move(hosts));
  CHECK(transport.ok());
  Rank rank(transport.TakeValue());
  rank.FramesArriveWholeAndInOrder();
  rank.RoundsCarryWhatWasPublished();
  rank.SpaceIsGrantedByRelease();
  rank.ChannelsComeAndGo();
  rank.GoodbyeComesLast();
  std::printf("kept on rank %d\n", number);
  return 0;
}

}  // namespace
}  // namespace horoscale

int main() { return horoscale::Run(); }
