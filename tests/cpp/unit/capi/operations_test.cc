// Operations through the C ABI: results and errors.
#include <chrono>
#include <cstring>
#include <future>

#include "unit/capi/job.h"

namespace horoscale {
namespace {

using testing::Call;
using testing::kDeadlineSeconds;
using testing::Meeting;
using testing::RunRanks;
using testing::VectorRequest;

class OneRank : public ::testing::Test {
 protected:
  void SetUp() override {
    hs_init_options options = {};
    options.struct_size = sizeof options;
    options.rank = 0;
    options.size = 1;
    options.serve_rendezvous = -1;
    ASSERT_EQ(hs_init(&options, &runtime_), HS_OK) << hs_error()->message;
  }
  void TearDown() override { hs_runtime_free(runtime_); }

  hs_code Refusal(const hs_request& request) {
    hs_handle* handle = nullptr;
    const hs_code code = hs_enqueue(runtime_, &request, &handle);
    EXPECT_EQ(handle, nullptr);
    return code;
  }

  hs_runtime* runtime_ = nullptr;
  std::vector<float> data_{1, 2, 3};
};

TEST_F(OneRank, AllreducesInPlace) {
  VectorRequest call(HS_ALLREDUCE, data_);
  call.request.prescale = 2.0;
  EXPECT_EQ(Call(runtime_, call.request), HS_OK);
  EXPECT_EQ(data_, (std::vector<float>{2, 4, 6}));
}

TEST_F(OneRank, NotifyStartsWhatWokeNobody) {
  VectorRequest call(HS_ALLREDUCE, data_);
  call.request.will_wait = 1;
  std::promise<void> executed;
  call.request.user_data = &executed;
  call.request.callback = [](void* user, hs_code) {
    static_cast<std::promise<void>*>(user)->set_value();
  };
  hs_handle* handle = nullptr;
  ASSERT_EQ(hs_enqueue(runtime_, &call.request, &handle), HS_OK);
  EXPECT_EQ(hs_notify(runtime_), HS_OK);
  const auto limit = std::chrono::duration<double>(kDeadlineSeconds);
  EXPECT_EQ(executed.get_future().wait_for(limit), std::future_status::ready);
  hs_handle_free(handle);
}

TEST_F(OneRank, RunsAtOnce) {
  VectorRequest call(HS_ALLREDUCE, data_);
  call.request.prescale = 2.0;
  hs_handle* handle = nullptr;
  EXPECT_EQ(hs_run(runtime_, &call.request, kDeadlineSeconds, &handle), HS_OK);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(data_, (std::vector<float>{2, 4, 6}));
}

TEST_F(OneRank, RunHandsOutWhatIsNotDoneYet) {
  VectorRequest call(HS_ALLREDUCE, data_);
  hs_handle* handle = nullptr;
  hs_code code = HS_OK;
  for (int i = 0; i < 10000 && code == HS_OK; ++i) {  // the progress thread may be faster
    code = hs_run(runtime_, &call.request, 0.0, &handle);
  }
  ASSERT_EQ(code, HS_TIMEOUT);
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
  hs_handle_free(handle);
}

TEST_F(OneRank, RunHandsOutAllocatedResults) {
  VectorRequest call(HS_ALLGATHER, data_);
  call.tensor.out = nullptr;
  hs_handle* handle = nullptr;
  ASSERT_EQ(hs_run(runtime_, &call.request, kDeadlineSeconds, &handle), HS_OK);
  ASSERT_NE(handle, nullptr);
  int64_t rows = 0;
  EXPECT_EQ(hs_output_rows(handle, 0, &rows, 1), HS_OK);
  EXPECT_EQ(rows, 3);
  hs_handle_free(handle);
}

TEST_F(OneRank, RunRefusesWhatEnqueueRefuses) {
  VectorRequest call(HS_ALLREDUCE, data_);
  call.request.kind = 99;
  hs_handle* handle = nullptr;
  EXPECT_EQ(hs_run(runtime_, &call.request, kDeadlineSeconds, &handle), HS_INVALID_ARGUMENT);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(hs_run(runtime_, nullptr, kDeadlineSeconds, &handle), HS_INVALID_ARGUMENT);
}

TEST_F(OneRank, NumbersThatNoEnumerationHasAreRefused) {
  for (const int32_t number : {-1, 13, 256, 256 + HS_FLOAT32, INT32_MAX}) {
    VectorRequest dtype(HS_ALLREDUCE, data_);
    dtype.tensor.dtype = number;
    EXPECT_EQ(Refusal(dtype.request), HS_INVALID_ARGUMENT) << number;
    EXPECT_NE(std::strstr(hs_error()->message, "element type"), nullptr) << hs_error()->message;
    VectorRequest kind(HS_ALLREDUCE, data_);
    kind.request.kind = number;
    EXPECT_EQ(Refusal(kind.request), HS_INVALID_ARGUMENT) << number;
    VectorRequest op(HS_ALLREDUCE, data_);
    op.request.reduce_op = number;
    EXPECT_EQ(Refusal(op.request), HS_INVALID_ARGUMENT) << number;
    EXPECT_EQ(hs_check_reduction(number, HS_SUM), HS_INVALID_ARGUMENT);
    EXPECT_EQ(hs_check_reduction(HS_FLOAT32, number), HS_INVALID_ARGUMENT);
  }
  EXPECT_EQ(hs_check_reduction(HS_FLOAT32, HS_SUM), HS_OK);
  EXPECT_EQ(hs_check_reduction(HS_BOOL, HS_AVERAGE), HS_UNSUPPORTED);
  EXPECT_EQ(hs_check_reduction(HS_FLOAT32, HS_ADASUM), HS_OK);
  EXPECT_EQ(hs_check_reduction(HS_INT32, HS_ADASUM), HS_UNSUPPORTED);
  EXPECT_EQ(hs_check_reduction(HS_FLOAT32, HS_BITWISE_OR), HS_UNSUPPORTED);
  EXPECT_EQ(hs_check_reduction(HS_BOOL, HS_BITWISE_XOR), HS_OK);
  VectorRequest scattered(HS_REDUCESCATTER, data_);
  scattered.request.reduce_op = HS_BITWISE_AND;
  EXPECT_EQ(Refusal(scattered.request), HS_UNSUPPORTED);
}

TEST_F(OneRank, MissingArgumentsAreRefused) {
  hs_handle* handle = nullptr;
  EXPECT_EQ(hs_enqueue(runtime_, nullptr, &handle), HS_INVALID_ARGUMENT);
  VectorRequest good(HS_ALLREDUCE, data_);
  EXPECT_EQ(hs_enqueue(runtime_, &good.request, nullptr), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_enqueue(nullptr, &good.request, &handle), HS_NOT_INITIALIZED);
  VectorRequest no_tensors(HS_ALLREDUCE, data_);
  no_tensors.request.tensors = nullptr;
  EXPECT_EQ(Refusal(no_tensors.request), HS_INVALID_ARGUMENT);
  VectorRequest no_shape(HS_ALLREDUCE, data_);
  no_shape.tensor.shape = nullptr;
  EXPECT_EQ(Refusal(no_shape.request), HS_INVALID_ARGUMENT);
  VectorRequest no_output(HS_ALLREDUCE, data_);
  no_output.tensor.out = nullptr;
  EXPECT_EQ(Refusal(no_output.request), HS_INVALID_ARGUMENT);
  VectorRequest no_ranks(HS_ADD_PROCESS_SET, data_);
  no_ranks.request.num_tensors = 0;
  no_ranks.request.num_ranks = 2;
  EXPECT_EQ(Refusal(no_ranks.request), HS_INVALID_ARGUMENT);
  VectorRequest old(HS_ALLREDUCE, data_);
  old.request.struct_size -= 8;
  EXPECT_EQ(Refusal(old.request), HS_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(hs_error()->message, "struct_size"), nullptr);
  EXPECT_EQ(hs_wait(nullptr, 0), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_poll(nullptr), 0);
  EXPECT_EQ(hs_result(nullptr), -1);
  EXPECT_EQ(hs_metrics(runtime_, nullptr), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_waiting_seconds(runtime_, nullptr), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_timeline_start(runtime_, nullptr, 0), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_process_sets(runtime_, nullptr, 1, nullptr), HS_INVALID_ARGUMENT);
}

TEST_F(OneRank, AnUnknownSetIsNamed) {
  VectorRequest call(HS_ALLREDUCE, data_);
  call.request.process_set = 5;
  EXPECT_EQ(Refusal(call.request), HS_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(hs_error()->message, "process set 5"), nullptr);
  int32_t count = 0;
  EXPECT_EQ(hs_process_set_ranks(runtime_, 5, nullptr, 0, &count), HS_INVALID_ARGUMENT);
}

TEST_F(OneRank, AnAllocatedOutputIsHandedOverOnce) {
  VectorRequest call(HS_ALLGATHER, data_);
  call.tensor.out = nullptr;
  hs_handle* handle = nullptr;
  ASSERT_EQ(hs_enqueue(runtime_, &call.request, &handle), HS_OK);
  ASSERT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
  void* output = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(hs_output(handle, 1, &output, &bytes), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_output(handle, -1, &output, &bytes), HS_INVALID_ARGUMENT);
  ASSERT_EQ(hs_output(handle, 0, &output, &bytes), HS_OK);
  ASSERT_EQ(bytes, 3 * sizeof(float));
  EXPECT_EQ(std::memcmp(output, data_.data(), bytes), 0);
  hs_free(output);
  EXPECT_EQ(hs_output(handle, 0, &output, &bytes), HS_INVALID_ARGUMENT);
  int64_t rows = 0;
  EXPECT_EQ(hs_output_rows(handle, 0, &rows, 1), HS_OK);
  EXPECT_EQ(rows, 3);
  hs_handle_free(handle);
}

TEST_F(OneRank, AResultGoesToMemoryThatFitsIt) {
  VectorRequest call(HS_ALLGATHER, data_);
  std::vector<float> out(5, 7.0f);
  call.tensor.out = out.data();
  call.tensor.out_rows = 3;
  hs_handle* handle = nullptr;
  ASSERT_EQ(hs_run(runtime_, &call.request, kDeadlineSeconds, &handle), HS_OK);
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(out, (std::vector<float>{data_[0], data_[1], data_[2], 7, 7}));
  int64_t rows = 0;
  EXPECT_EQ(hs_output_rows(handle, 0, &rows, 1), HS_OK);
  EXPECT_EQ(rows, 3);
  void* output = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(hs_output(handle, 0, &output, &bytes), HS_INVALID_ARGUMENT);
  hs_handle_free(handle);
}

TEST_F(OneRank, AResultThatDoesNotFitIsAnError) {
  for (const int64_t room : {0, 2, 4}) {
    VectorRequest call(HS_ALLGATHER, data_);
    std::vector<float> out(5, 7.0f);
    call.tensor.out = out.data();
    call.tensor.out_rows = room;
    EXPECT_EQ(Call(runtime_, call.request), HS_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(hs_error()->message, "(3,)"), nullptr) << hs_error()->message;
    EXPECT_NE(std::strstr(hs_error()->message, ("(" + std::to_string(room) + ",)").c_str()),
              nullptr);
    EXPECT_STREQ(hs_error()->tensor, "x");
    EXPECT_EQ(out, std::vector<float>(5, 7.0f));
  }
  VectorRequest negative(HS_ALLTOALL, data_);
  negative.tensor.out_rows = -1;
  EXPECT_EQ(Refusal(negative.request), HS_INVALID_ARGUMENT);
  VectorRequest gathered(HS_GATHER, data_);
  gathered.tensor.out_rows = 3;
  EXPECT_EQ(Refusal(gathered.request), HS_INVALID_ARGUMENT);
}

TEST_F(OneRank, AnOperationThatIsNotDoneHasNoOutput) {
  VectorRequest call(HS_ALLREDUCE, data_);
  hs_handle* handle = nullptr;
  ASSERT_EQ(hs_enqueue(runtime_, &call.request, &handle), HS_OK);
  ASSERT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
  void* output = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(hs_output(handle, 0, &output, &bytes), HS_INVALID_ARGUMENT);  // it was written to `out`
  hs_handle_free(handle);
}

TEST(Operations, OfTwoRanksOverSharedMemory) {
  const Meeting meeting;
  RunRanks(meeting, 2, [](int rank, hs_runtime* runtime) {
    hs_topology topology = {};
    ASSERT_EQ(hs_get_topology(runtime, &topology), HS_OK);
    EXPECT_EQ(topology.rank, rank);
    EXPECT_EQ(topology.local_size, 2);
    std::vector<float> data(1000, static_cast<float>(rank + 1));
    VectorRequest sum(HS_ALLREDUCE, data);
    ASSERT_EQ(Call(runtime, sum.request), HS_OK) << hs_error()->message;
    EXPECT_EQ(data, std::vector<float>(1000, 3.0f));
    VectorRequest root(HS_BROADCAST, data);
    root.request.root = 1;
    if (rank == 0) root.tensor.in = nullptr;
    data.assign(1000, static_cast<float>(rank));
    ASSERT_EQ(Call(runtime, root.request), HS_OK) << hs_error()->message;
    EXPECT_EQ(data, std::vector<float>(1000, 1.0f));
    // A mismatch is an error on both ranks.
    std::vector<float> odd(rank == 0 ? 4 : 5);
    VectorRequest mismatch(HS_ALLREDUCE, odd, "layer");
    EXPECT_EQ(Call(runtime, mismatch.request), HS_MISMATCH);
    EXPECT_STREQ(hs_error()->tensor, "layer");
    EXPECT_EQ(hs_error()->process_set, 0);
  });
}

TEST(Operations, APeerThatFailsIsNamedWithItsReason) {
  const Meeting meeting;
  RunRanks(meeting, 2, [](int rank, hs_runtime* runtime) {
    if (rank == 1) {
      EXPECT_EQ(hs_shutdown_failed(runtime, "KeyError: 'label'"), HS_OK);
      return;
    }
    std::vector<float> data(4);
    VectorRequest call(HS_ALLREDUCE, data);
    EXPECT_EQ(Call(runtime, call.request), HS_RANK_FAILED);
    const hs_error_info& error = *hs_error();
    ASSERT_EQ(error.num_ranks, 1);
    EXPECT_EQ(error.ranks[0], 1);
    EXPECT_NE(std::strstr(error.message, "KeyError: 'label'"), nullptr) << error.message;
  });
}

}  // namespace
}  // namespace horoscale
