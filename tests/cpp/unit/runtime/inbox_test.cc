// Which operations in the inbox may wait for more, and which must begin at once.
#include "runtime/inbox.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

class InboxTest : public ::testing::Test {
 protected:
  InboxTest() { inbox_.OnSetAdded(0, {0, 1}, {0, 1}); }

  OperationPtr Put(OpKind kind, int64_t elements) {
    auto operation = std::make_shared<Operation>();
    operation->request.signature.kind = kind;
    if (kind == OpKind::kAllreduce) {
      operation->request.signature.tensors = {{DataType::kFloat32, {elements}}};
      operation->tensors = {{nullptr, nullptr, elements, 4}};
    }
    EXPECT_TRUE(inbox_.Put(operation).ok());
    return operation;
  }

  Inbox inbox_{0};
};

TEST_F(InboxTest, GathersLittle) {
  EXPECT_EQ(inbox_.Gathering(), 0u);
  Put(OpKind::kAllreduce, 1000);
  EXPECT_EQ(inbox_.Gathering(), 1u);
  Put(OpKind::kAllreduce, 1000);
  EXPECT_EQ(inbox_.Gathering(), 2u);
  Put(OpKind::kAllreduce, 1 << 20);
  EXPECT_EQ(inbox_.Gathering(), 0u);
}

TEST_F(InboxTest, GathersNothingThatOthersWaitFor) {
  Put(OpKind::kBarrier, 0);
  EXPECT_EQ(inbox_.Gathering(), 0u);
}

TEST_F(InboxTest, GathersOnlyWhileNothingElseIsPending) {
  const OperationPtr first = Put(OpKind::kAllreduce, 1);
  EXPECT_EQ(inbox_.Take().size(), 1u);
  EXPECT_EQ(inbox_.Gathering(), 0u);
  Put(OpKind::kAllreduce, 1);
  EXPECT_EQ(inbox_.Gathering(), 0u);
  inbox_.OnFinished(*first, Status::Ok());
  EXPECT_EQ(inbox_.Gathering(), 1u);
}

}  // namespace
}  // namespace horoscale
