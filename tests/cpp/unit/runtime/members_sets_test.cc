// Process sets that are created by their members alone.
#include <gmock/gmock.h>

#include <memory>

#include "base/process_set_ids.h"
#include "unit/runtime/ranks.h"

namespace horoscale {
namespace {

using testing::Allreduce;
using testing::Barrier;
using testing::Call;
using ::testing::ElementsAre;
using testing::Enqueued;
using ::testing::HasSubstr;
using testing::kDeadlineSeconds;
using testing::Ranks;
using testing::RecvOf;
using testing::RemoveSet;
using testing::SendOf;

OperationPtr MakeSet(std::vector<int> ranks, bool distinct = false, std::string tag = "") {
  auto operation = std::make_shared<Operation>();
  operation->request.signature.kind = OpKind::kAddProcessSet;
  operation->new_set = std::make_unique<NewSet>(NewSet{std::move(ranks), distinct, std::move(tag)});
  return operation;
}

OperationPtr RemoveMembersSet(int id) {
  OperationPtr operation = RemoveSet(id);
  operation->process_set_id = id;
  return operation;
}

int Made(Runtime& runtime, std::vector<int> ranks) {
  const OperationPtr operation = MakeSet(std::move(ranks));
  const Status status = Call(runtime, operation);
  EXPECT_TRUE(status.ok()) << status.message();
  return static_cast<int>(operation->result);
}

TEST(MembersSets, AreMadeUsedAndRemovedWhileOthersDoNothing) {
  Ranks ranks(4);
  ranks.Run([](int rank, Runtime& runtime) {
    if (rank == 0 || rank == 2) return;
    for (int round = 0; round < 20; ++round) {
      const int id = Made(runtime, {1, 3});
      EXPECT_EQ(id, IdByMembers(1, static_cast<uint32_t>(round), 4));
      EXPECT_THAT(*runtime.ProcessSetRanks(id), ElementsAre(1, 3));
      std::vector<float> data(1000, static_cast<float>(rank));
      ASSERT_TRUE(Call(runtime, Allreduce(data, "x", id)).ok());
      EXPECT_EQ(data.back(), 4.0f);
      ASSERT_TRUE(Call(runtime, RemoveMembersSet(id)).ok());
      EXPECT_THAT(runtime.ProcessSetIds(), ElementsAre(0));
      EXPECT_EQ(runtime.Enqueue(Barrier("", id), true).code(), StatusCode::kInvalidArgument);
    }
  });
  EXPECT_THAT(ranks.runtime(0).ProcessSetIds(), ElementsAre(0));
}

// Two hosts for the control plane: reports and plans go through a tree.
TEST(MembersSets, SpanHosts) {
  Ranks ranks(6, {}, {0, 1, 0, 1, 2, 2});
  ranks.Run([](int rank, Runtime& runtime) {
    if (rank == 1) return;
    for (int round = 0; round < 10; ++round) {
      const int id = Made(runtime, {5, 4, 3, 2, 0});
      EXPECT_THAT(*runtime.ProcessSetRanks(id), ElementsAre(5, 4, 3, 2, 0));
      ASSERT_TRUE(Call(runtime, Barrier("", id)).ok());
      ASSERT_TRUE(Call(runtime, RemoveMembersSet(id)).ok());
    }
  });
}

TEST(MembersSets, ARemovalWaitsForWhatIsPendingHere) {
  Ranks ranks(3);
  ranks.Run([](int rank, Runtime& runtime) {
    if (rank == 2) return;
    const int id = Made(runtime, {0, 1});
    std::vector<float> data(100, 1.0f);
    const OperationPtr pending = Allreduce(data, "x", id);
    ASSERT_TRUE(runtime.Enqueue(pending, false).ok());
    ASSERT_TRUE(Call(runtime, RemoveMembersSet(id)).ok());
    EXPECT_TRUE(pending->done.load() && pending->status.ok()) << rank;
  });
}

TEST(MembersSets, CudaTensorsAreRefused) {
  Ranks ranks(2);
  const int id = Made(ranks.runtime(0), {0});
  std::vector<float> data(4);
  const OperationPtr operation = Allreduce(data, "x", id);
  operation->on_device = std::make_unique<OnDevice>();
  const Status status = ranks.runtime(0).Enqueue(operation, true);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("created by its members only"));
}

TEST(MembersSets, WhoLeavesBeforeItCallsFailsTheOthers) {
  for (const int leaver : {0, 1, 2}) {
    Ranks ranks(4);
    ranks.Run([&](int rank, Runtime& runtime) {
      if (rank == leaver) return runtime.Shutdown("");
      if (rank < 3) {
        const Status status = Call(runtime, MakeSet({0, 1, 2}));
        EXPECT_EQ(status.code(), StatusCode::kRankFailed) << status.message();
        EXPECT_THAT(status.detail().ranks, ElementsAre(leaver));
      }
      std::vector<int> others = {0, 1, 2, 3};
      std::erase(others, leaver);
      const int id = Made(runtime, others);
      ASSERT_TRUE(Call(runtime, Barrier("", id)).ok());
    });
  }
}

TEST(MembersSets, ASetThatHasLostAMemberIsRemovedByEachByItself) {
  Ranks ranks(4);
  ranks.Run([](int rank, Runtime& runtime) {
    if (rank == 3) return;
    const int id = Made(runtime, {0, 1, 2});
    if (rank == 2) return runtime.Shutdown("it was told to");
    if (rank == 1) {
      EXPECT_EQ(Call(runtime, Barrier("", id)).code(), StatusCode::kRankFailed);
    }
    // On rank 0 the set may fail while its removal is pending.
    const Status removed = Call(runtime, RemoveMembersSet(id));
    EXPECT_TRUE(removed.ok()) << removed.message();
    EXPECT_THAT(runtime.ProcessSetIds(), ElementsAre(0));
  });
}

// A member has left cleanly, so messages among the others continue. One of them has removed the
// set, the others have not.
TEST(MembersSets, WhoRemovesALostSetAloneEndsItsMessagesAndNoOthers) {
  Ranks ranks(5);
  int id = 0;
  ranks.Run([&id](int rank, Runtime& runtime) {
    if (rank == 4) return;  // not a member
    const int made = Made(runtime, {0, 1, 2, 3});
    if (rank == 0) id = made;
  });
  Runtime& remover = ranks.runtime(0);
  Runtime& other = ranks.runtime(1);
  std::vector<std::byte> large(100'000);
  std::vector<std::byte> received(large.size());
  std::vector<std::byte> small(8);
  std::vector<std::byte> in(small.size());
  ranks.runtime(3).Shutdown("");
  EXPECT_EQ(Call(remover, RecvOf(in, 3, 0, id)).code(), StatusCode::kRankFailed);

  const auto send = Enqueued(other, SendOf(large, 0, 1, id));
  const auto recv = Enqueued(other, RecvOf(in, 0, 2, id));
  const auto among_others = Enqueued(other, RecvOf(received, 2, 3, id));
  ASSERT_TRUE(Call(remover, SendOf(small, 1, 4, id)).ok());
  ASSERT_TRUE(Call(remover, RemoveMembersSet(id)).ok());
  for (const auto& operation : {send, recv}) {
    const Status status = other.Wait(operation, kDeadlineSeconds);
    EXPECT_EQ(status.code(), StatusCode::kRankFailed) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("rank 0 has removed process set"));
    EXPECT_THAT(status.message(), HasSubstr("because rank 3 left the job"));
    EXPECT_THAT(status.detail().ranks, ElementsAre(3));
  }
  EXPECT_EQ(Call(other, SendOf(large, 0, 1, id)).code(), StatusCode::kRankFailed);
  EXPECT_TRUE(Call(other, RecvOf(in, 0, 4, id)).ok());  // it had arrived before
  EXPECT_FALSE(among_others->done.load());
  EXPECT_TRUE(Call(ranks.runtime(2), SendOf(large, 1, 3, id)).ok());
  EXPECT_TRUE(other.Wait(among_others, kDeadlineSeconds).ok());
  EXPECT_TRUE(Call(other, RemoveMembersSet(id)).ok());
  EXPECT_THAT(other.ProcessSetIds(), ElementsAre(0));
}

TEST(MembersSets, AStallLimitEndsTheCallAndNamesWhoIsMissed) {
  Config config;
  config.stall_warning_seconds = 60;
  config.stall_shutdown_seconds = 0.01;
  Ranks ranks(3, config);
  const Status status = Call(ranks.runtime(0), MakeSet({0, 1, 2}, false, "layers"));
  EXPECT_EQ(status.code(), StatusCode::kRankFailed);
  EXPECT_THAT(status.message(), HasSubstr("add_process_set of ranks 0-2 by its members, tag "
                                          "\"layers\" has waited for 0 s for ranks 1 and 2"));
  EXPECT_THAT(status.detail().ranks, ElementsAre(1, 2));
}

TEST(MembersSets, ShutdownEndsTheCall) {
  Ranks ranks(2);
  const OperationPtr pending = MakeSet({0, 1});
  ASSERT_TRUE(ranks.runtime(0).Enqueue(pending, false).ok());
  ranks.runtime(0).Shutdown("");
  EXPECT_EQ(ranks.runtime(0).Wait(pending, kDeadlineSeconds).code(), StatusCode::kShutdown);
  EXPECT_EQ(Call(ranks.runtime(1), MakeSet({0, 1})).code(), StatusCode::kRankFailed);
}

TEST(MembersSets, OnlyMembersCanCall) {
  Ranks ranks(2);
  const Status status = ranks.runtime(1).Enqueue(MakeSet({0}), true);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 is not a member"));
  for (const auto& wrong : {std::vector<int>{}, {1, 1}, {1, 2}, {-1, 1}}) {
    EXPECT_FALSE(ranks.runtime(1).Enqueue(MakeSet(wrong), true).ok());
  }
}

}  // namespace
}  // namespace horoscale
