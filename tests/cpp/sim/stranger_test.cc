// A broken peer: messages of a working set with bytes changed. Each is refused with kProtocol or
// accepted as it is; nothing crashes.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/codec.h"
#include "core/coordinator.h"
#include "core/member.h"
#include "core/post_table.h"
#include "sim/random.h"

namespace horoscale::sim {
namespace {

std::vector<std::byte> Damage(Random& random, std::vector<std::byte> bytes) {
  for (int i = random.Between(0, 2); i > 0 && !bytes.empty(); --i) {
    bytes[random.Below(bytes.size())] = static_cast<std::byte>(random.Below(256));
  }
  return bytes;
}

Request RandomRequest(Random& random) {
  Request request;
  if (random.Chance(70)) request.name = std::string(1, static_cast<char>('a' + random.Below(6)));
  request.signature.tensors.resize(random.Between(1, 2));
  for (TensorSpec& tensor : request.signature.tensors) tensor.shape = {random.Between(0, 300)};
  return request;
}

// Runs until the first refusal, which ends a set.
void RunSet(Random& random) {
  CoordinatorOptions options;
  options.ranks = {0, 1};
  options.cache_capacity = 3;
  options.limits.partition_bytes = 512;
  Coordinator coordinator(options);
  Member members[] = {Member(0, 0, 2, 3), Member(0, 1, 2, 3)};
  Token token = 0;
  for (int step = 0; step < 40; ++step) {
    for (uint32_t i = 0; i < 2; ++i) {
      (void)members[i].Submit(RandomRequest(random), ++token);
      const std::optional<Report> report = members[i].TakeReport();
      if (!report) continue;
      const auto decoded = DecodeReport(Damage(random, Encode(*report)));
      const Status status = decoded.ok() ? coordinator.OnReport(i, *decoded, 0) : decoded.status();
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kProtocol);
      return;
    }
    for (const PlanEntry& entry : coordinator.TakePlan(0)) {
      for (Member& member : members) {
        const auto decoded = DecodePlanEntry(Damage(random, Encode(entry)));
        const Status status = decoded.ok() ? member.Apply(*decoded).status() : decoded.status();
        if (status.ok()) continue;
        EXPECT_EQ(status.code(), StatusCode::kProtocol);
        return;
      }
      coordinator.OnExecuted(entry.sequence);
    }
  }
}

constexpr uint32_t kAll[] = {0, 1};

// Two members that block in each operation and post where they may. Runs until the first refusal.
void RunPosts(Random& random) {
  CoordinatorOptions options;
  options.ranks = {0, 1};
  options.cache_capacity = 3;
  Coordinator coordinator(options);
  Member members[] = {Member(0, 0, 2, 3), Member(0, 1, 2, 3)};
  PostTable tables[] = {PostTable(2, 0), PostTable(2, 1)};
  Token token = 0;
  for (int step = 0; step < 40; ++step) {
    const Request request = RandomRequest(random);
    for (uint32_t i = 0; i < 2; ++i) {
      if (members[i].HasPending()) return;  // waits for a damaged post, maybe forever
      (void)members[i].Submit(request, ++token);
      Status status;
      if (const auto post = random.Chance(80) ? members[i].TakePost() : std::nullopt) {
        tables[i].SetOwn(*post);
        const auto decoded = DecodePost(Damage(random, Encode(*post, {})));
        status = decoded.ok() ? coordinator.OnPost(i, decoded->post, 0) : decoded.status();
        if (status.ok()) {
          status = tables[1 - i].Add(i, decoded->post, decoded->values, members[1 - i]);
        }
      } else {
        status = coordinator.OnReport(i, *members[i].TakeReport(), 0);
      }
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kProtocol);
      return;
    }
    for (const PlanEntry& entry : coordinator.TakePlan(0)) {
      for (Member& member : members) {
        if (!member.Apply(entry).ok()) return;  // the plan contains what the member never submitted
      }
      coordinator.OnExecuted(entry.sequence);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      if (!members[i].HasPosted()) {
        tables[i].ForgetOwn();
      } else if (tables[i].HasAll(kAll)) {
        (void)members[i].EndPosted();
        tables[i].End();
      }
    }
  }
}

TEST(Strangers, DamagedPostsDoNoHarm) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    RunPosts(random);
  }
}

TEST(Strangers, DamagedMessagesDoNoHarm) {
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    RunSet(random);
  }
}

}  // namespace
}  // namespace horoscale::sim
