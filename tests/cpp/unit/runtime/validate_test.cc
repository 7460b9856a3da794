#include "runtime/validate.h"

#include <gtest/gtest.h>

namespace horoscale {
namespace {

std::byte tensor_memory[64];

OperationPtr Make(OpKind kind, std::vector<int64_t> shape, DataType dtype = DataType::kFloat32) {
  auto operation = std::make_shared<Operation>();
  operation->request.name = "x";
  operation->request.signature.kind = kind;
  TensorMemory tensor{tensor_memory, tensor_memory, shape.empty() ? 1 : shape[0], 4};
  if (HasFreeFirstDimension(kind) && !shape.empty()) shape[0] = kFreeDimension;
  operation->request.signature.tensors = {{dtype, std::move(shape)}};
  operation->tensors = {tensor};
  return operation;
}

TEST(ValidateRequest, GoodOnesPass) {
  EXPECT_TRUE(ValidateRequest(*Make(OpKind::kAllreduce, {2, 3})).ok());
  EXPECT_TRUE(ValidateRequest(*Make(OpKind::kAllreduce, {})).ok());
  EXPECT_TRUE(ValidateRequest(*Make(OpKind::kAllgather, {0, 5})).ok());
  EXPECT_TRUE(ValidateRequest(*Make(OpKind::kBroadcast, {0})).ok());
}

TEST(ValidateRequest, RowsNeedADimension) {
  for (const OpKind kind : {OpKind::kAllgather, OpKind::kAlltoall, OpKind::kReducescatter,
                            OpKind::kGather, OpKind::kScatter}) {
    EXPECT_FALSE(ValidateRequest(*Make(kind, {})).ok()) << Name(kind);
  }
}

TEST(ValidateRequest, ReductionsMustBeDefined) {
  const OperationPtr average = Make(OpKind::kAllreduce, {2}, DataType::kBool);
  average->request.signature.reduce_op = ReduceOp::kAverage;
  EXPECT_FALSE(ValidateRequest(*average).ok());
  for (const OpKind kind : {OpKind::kAllreduce, OpKind::kReduce, OpKind::kReducescatter}) {
    const OperationPtr bits = Make(kind, {2});
    bits->request.signature.reduce_op = ReduceOp::kBitwiseXor;
    EXPECT_EQ(ValidateRequest(*bits).code(), StatusCode::kUnsupported) << Name(kind);
    bits->request.signature.tensors[0].dtype = DataType::kInt32;
    EXPECT_TRUE(ValidateRequest(*bits).ok()) << Name(kind);
  }
}

TEST(ValidateRequest, MemoryAndShapesMustMakeSense) {
  const OperationPtr no_input = Make(OpKind::kAllreduce, {2});
  no_input->tensors[0].in = nullptr;
  EXPECT_FALSE(ValidateRequest(*no_input).ok());
  const OperationPtr barrier = Make(OpKind::kBarrier, {2});
  EXPECT_FALSE(ValidateRequest(*barrier).ok());
  const OperationPtr no_output = Make(OpKind::kBroadcast, {2});
  no_output->tensors[0].out = nullptr;
  EXPECT_FALSE(ValidateRequest(*no_output).ok());
  EXPECT_FALSE(ValidateRequest(*Make(OpKind::kAllreduce, {-2})).ok());
  EXPECT_FALSE(ValidateRequest(*Make(OpKind::kAllreduce, {int64_t{1} << 62, 8})).ok());
  EXPECT_FALSE(ValidateRequest(*Make(OpKind::kAllreduce, {1}, static_cast<DataType>(99))).ok());
  const OperationPtr none = Make(OpKind::kAllreduce, {1});
  none->request.signature.tensors.clear();
  EXPECT_FALSE(ValidateRequest(*none).ok());
}

TEST(ValidateRequest, JoinAndRegistrationBelongToTheGlobalSet) {
  Operation join;
  join.request.signature.kind = OpKind::kJoin;
  EXPECT_TRUE(ValidateRequest(join).ok());
  join.process_set_id = 1;
  EXPECT_FALSE(ValidateRequest(join).ok());
}

TEST(ValidateMembership, TheRankAndTheRootMustBeMembers) {
  const OperationPtr broadcast = Make(OpKind::kBroadcast, {2});
  broadcast->request.signature.root = 3;
  EXPECT_TRUE(ValidateMembership(*broadcast, {1, 3}, {1, 3}, 1).ok());
  EXPECT_FALSE(ValidateMembership(*broadcast, {1, 3}, {1, 3}, 2).ok());
  EXPECT_FALSE(ValidateMembership(*broadcast, {1, 2}, {1, 2}, 1).ok());
}

TEST(ValidateMembership, SplitsMustFitTheSetAndTheTensor) {
  const OperationPtr alltoall = Make(OpKind::kAlltoall, {4});
  alltoall->splits = {1, 3};
  EXPECT_TRUE(ValidateMembership(*alltoall, {0, 1}, {0, 1}, 0).ok());
  EXPECT_FALSE(ValidateMembership(*alltoall, {0, 1, 2}, {0, 1, 2}, 0).ok());
  alltoall->splits = {2, 3};
  EXPECT_FALSE(ValidateMembership(*alltoall, {0, 1}, {0, 1}, 0).ok());
  alltoall->splits = {-1, 3};
  EXPECT_FALSE(ValidateMembership(*alltoall, {0, 1}, {0, 1}, 0).ok());
}

TEST(ValidateMembership, NewSetsHaveDistinctRanksOfTheJob) {
  Operation add;
  add.request.signature.kind = OpKind::kAddProcessSet;
  for (const auto& [ranks, good] : std::vector<std::pair<std::vector<int>, bool>>{
           {{0, 2}, true}, {{}, false}, {{0, 0}, false}, {{-1, 1}, false}, {{0, 3}, false}}) {
    add.request.signature.ranks = ranks;
    EXPECT_EQ(ValidateMembership(add, {0, 1, 2}, {0, 1, 2}, 0).ok(), good);
  }
}

TEST(ValidateMembership, OnlyTheRootOfABroadcastNeedsAnInput) {
  const OperationPtr broadcast = Make(OpKind::kBroadcast, {4});
  broadcast->request.signature.root = 2;
  broadcast->tensors[0].in = nullptr;
  EXPECT_TRUE(ValidateRequest(*broadcast).ok());
  EXPECT_TRUE(ValidateMembership(*broadcast, {1, 2}, {1, 2}, 1).ok());
  EXPECT_FALSE(ValidateMembership(*broadcast, {1, 2}, {1, 2}, 2).ok());
}

TEST(ValidateMembership, AReducescatterNeedsRoomForTheOwnRows) {
  const OperationPtr scatter = Make(OpKind::kReducescatter, {1});
  scatter->tensors[0].out = nullptr;
  EXPECT_TRUE(ValidateRequest(*scatter).ok());
  EXPECT_TRUE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 2).ok());  // the row belongs to rank 1
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 1).ok());
  scatter->splits = {0, 1};
  EXPECT_TRUE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 1).ok());  // now it belongs to rank 2
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 2).ok());
  scatter->splits = {1, 1};  // more rows than there are
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 2).ok());
  scatter->splits = {0, 0};  // fewer
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 2).ok());
  scatter->splits = {1};
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 2).ok());
}

TEST(ValidateMembership, OnlyTheRootOfAReductionNeedsRoomForIt) {
  const OperationPtr reduce = Make(OpKind::kReduce, {2});
  reduce->request.signature.root = 1;
  reduce->tensors[0].out = nullptr;
  EXPECT_TRUE(ValidateRequest(*reduce).ok());
  EXPECT_TRUE(ValidateMembership(*reduce, {1, 2}, {1, 2}, 2).ok());
  EXPECT_FALSE(ValidateMembership(*reduce, {1, 2}, {1, 2}, 1).ok());
  reduce->request.signature.root = 3;
  EXPECT_FALSE(ValidateMembership(*reduce, {1, 2}, {1, 2}, 2).ok());
}

TEST(ValidateMembership, OnlyTheRootOfAScatterNeedsRowsAndSplits) {
  const OperationPtr scatter = Make(OpKind::kScatter, {4});
  scatter->request.signature.root = 1;
  scatter->tensors[0].out = nullptr;
  scatter->splits = {1, 2};
  EXPECT_TRUE(ValidateRequest(*scatter).ok());
  EXPECT_TRUE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 1).ok());
  scatter->splits = {3, 2};
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 1).ok());
  scatter->splits.clear();
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 1).ok());
  scatter->tensors[0].in = nullptr;
  EXPECT_TRUE(ValidateRequest(*scatter).ok());
  EXPECT_TRUE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 2).ok());
  EXPECT_FALSE(ValidateMembership(*scatter, {1, 2}, {1, 2}, 1).ok());
}

}  // namespace
}  // namespace horoscale
