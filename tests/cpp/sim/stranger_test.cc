// A broken peer: messages of a working set with bytes changed. Whatever they say is refused with
// kProtocol or taken at its word; nothing crashes.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/codec.h"
#include "core/coordinator.h"
#include "core/member.h"
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

// Until the first refusal, which ends a set.
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

TEST(Strangers, DamagedMessagesDoNoHarm) {
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    RunSet(random);
  }
}

}  // namespace
}  // namespace horoscale::sim
