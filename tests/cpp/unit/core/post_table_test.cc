#include "core/post_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/post_box.h"

namespace horoscale {
namespace {

constexpr uint32_t kMembersOfThree[] = {0, 1, 2};

// A member of a set of three whose cache has one unnamed allreduce, in slot 4.
class PostedMember {
 public:
  explicit PostedMember(uint32_t self) : member(0, self, 3, 16) {
    Submit();
    (void)member.TakeReport();
    PlanEntry entry;
    entry.sequence = 1;
    PlanItem& item = entry.items.emplace_back();
    item.slot = 4;
    item.request = request_;
    item.request->index = 1;
    EXPECT_TRUE(member.Apply(entry).ok());
  }

  void Submit() { EXPECT_TRUE(member.Submit(request_, ++token_).ok()); }

  Post SubmitAndPost() {
    Submit();
    EXPECT_TRUE(member.FindLone());
    return *member.TakePost();
  }

  Member member;

 private:
  Request request_ = [] {
    Request request;
    request.signature.tensors = {{DataType::kFloat32, {2}}};
    return request;
  }();
  Token token_ = 0;
};

const std::vector<std::byte> kValues(8, std::byte{7});

TEST(PostTable, EndsWhatAllMembersHavePosted) {
  PostedMember here(0);
  PostTable table(3, 0);
  const Post post = here.SubmitAndPost();
  EXPECT_EQ(post, (Post{1, 0, 2, 4, 1}));
  table.SetOwn(post);
  EXPECT_TRUE(table.Add(2, post, kValues, here.member).ok());
  EXPECT_FALSE(table.HasAll(kMembersOfThree));
  EXPECT_TRUE(table.Add(1, post, {}, here.member).ok());
  ASSERT_TRUE(table.HasAll(kMembersOfThree));
  EXPECT_EQ(table.ValuesOf(2).size(), kValues.size());
  EXPECT_EQ(here.member.EndPosted(), 2u);
  table.End();
  EXPECT_FALSE(here.member.HasPending());
  EXPECT_FALSE(table.HasOwn());
}

TEST(PostTable, WaitsForThePlanWhereMembersPostDifferently) {
  PostedMember here(0);
  PostTable table(3, 0);
  const Post post = here.SubmitAndPost();
  Post other = post;
  other.slot_since = 9;
  table.SetOwn(post);
  EXPECT_TRUE(table.Add(1, post, {}, here.member).ok());
  EXPECT_TRUE(table.Add(2, other, {}, here.member).ok());
  EXPECT_FALSE(table.HasAll(kMembersOfThree));
}

TEST(PostTable, ForgetsPostsOfWhatHasEnded) {
  PostedMember here(0);
  PostTable table(3, 0);
  const Post over{1, 0, 1, 4, 1};
  for (int i = 0; i < 3; ++i) {
    PostTable fresh(3, 0);
    EXPECT_TRUE(fresh.Add(1, over, kValues, here.member).ok());
  }
  EXPECT_TRUE(table.Add(1, over, kValues, here.member).ok());
  EXPECT_TRUE(table.Add(1, Post{1, 0, 2, 4, 1}, kValues, here.member).ok());
}

TEST(PostTable, RefusesMoreThanAMemberCanHaveToSay) {
  PostedMember here(0);
  PostTable table(3, 0);
  EXPECT_TRUE(table.Add(1, Post{1, 0, 2, 4, 1}, {}, here.member).ok());
  EXPECT_EQ(table.Add(1, Post{1, 0, 2, 4, 1}, {}, here.member).code(), StatusCode::kProtocol);
  EXPECT_TRUE(table.Add(1, Post{1, 0, 3, 4, 1}, {}, here.member).ok());
  EXPECT_EQ(table.Add(1, Post{1, 0, 4, 4, 1}, {}, here.member).code(), StatusCode::kProtocol);
}

TEST(PostTable, AJoinIsReportedAfterWhatWasPosted) {
  PostedMember here(0);
  (void)here.SubmitAndPost();
  Request join;
  join.signature.kind = OpKind::kJoin;
  ASSERT_TRUE(here.member.Submit(join, 77).ok());
  EXPECT_FALSE(here.member.TakeReport());
  (void)here.member.EndPosted();
  const auto report = here.member.TakeReport();
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->join);
}

constexpr PostBox::Key kFifth{kNoName, 5};

TEST(PostBox, TellsWhoHasNotPosted) {
  PostBox box(2, 10);
  const auto signature = std::make_shared<const Signature>();
  EXPECT_EQ(box.Add(1, kFifth, {4, 1, signature}, 100), PostBox::Outcome::kWaits);
  EXPECT_TRUE(box.TakeOverdue(109).empty());
  const auto overdue = box.TakeOverdue(111);
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].has_posted, (std::vector<bool>{false, true}));
  EXPECT_EQ(overdue[0].seconds, 11);
  EXPECT_TRUE(box.TakeOverdue(112).empty()) << "once per period";
  EXPECT_EQ(box.Add(0, kFifth, {4, 1, signature}, 112), PostBox::Outcome::kEnded);
  EXPECT_TRUE(box.All().empty());
}

TEST(PostBox, HandsOverWhatMembersDisagreeAbout) {
  PostBox box(2, 0);
  const auto signature = std::make_shared<const Signature>();
  EXPECT_EQ(box.Add(0, kFifth, {4, 1, signature}, 0), PostBox::Outcome::kWaits);
  EXPECT_EQ(box.Add(1, kFifth, {6, 2, signature}, 0), PostBox::Outcome::kDisagrees);
  EXPECT_EQ(box.Take(kFifth).by_member.size(), 2u);
  EXPECT_TRUE(box.Take(kFifth).by_member.empty());
}

}  // namespace
}  // namespace horoscale
