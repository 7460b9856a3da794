// Operations that are described once and run again on other memory.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "unit/capi/job.h"

namespace horoscale {
namespace {

using testing::kDeadlineSeconds;
using testing::Meeting;
using testing::RunRanks;
using testing::VectorRequest;

uintptr_t AddressOf(const std::vector<float>& data) {
  return reinterpret_cast<uintptr_t>(data.data());
}

class Templates : public ::testing::Test {
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

  hs_template* Doubling(const char* name = nullptr) {
    std::vector<float> model(3);
    VectorRequest call(HS_ALLREDUCE, model);
    call.request.name = name;
    call.request.prescale = 2.0;
    call.tensor.in = call.tensor.out = nullptr;
    hs_template* made = nullptr;
    EXPECT_EQ(hs_prepare(runtime_, &call.request, &made), HS_OK) << hs_error()->message;
    return made;
  }

  hs_runtime* runtime_ = nullptr;
  std::vector<float> data_{1, 2, 3};
};

TEST_F(Templates, RunAgainWithOtherMemory) {
  hs_template* const doubling = Doubling();
  const std::vector<float> other{4, 5, 6};
  std::vector<float> result(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(hs_run_again(doubling, AddressOf(data_), AddressOf(data_), kDeadlineSeconds), HS_OK);
    EXPECT_EQ(hs_run_again(doubling, AddressOf(other), AddressOf(result), kDeadlineSeconds), HS_OK);
  }
  EXPECT_EQ(data_, (std::vector<float>{8, 16, 24}));
  EXPECT_EQ(result, (std::vector<float>{8, 10, 12}));
  EXPECT_EQ(hs_take_unfinished(), nullptr);
  hs_template_free(doubling);
}

TEST_F(Templates, EnqueueAgain) {
  hs_template* const doubling = Doubling("named");
  for (const int will_wait : {0, 1}) {
    hs_handle* const handle =
        hs_enqueue_again(doubling, AddressOf(data_), AddressOf(data_), will_wait);
    ASSERT_NE(handle, nullptr) << hs_error()->message;
    EXPECT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
    hs_handle_free(handle);
  }
  EXPECT_EQ(data_, (std::vector<float>{4, 8, 12}));
  hs_template_free(doubling);
  hs_template_free(nullptr);
}

TEST_F(Templates, AnAllgatherHasRoomForSoManyRows) {
  for (const int64_t rows : {3, 4}) {
    VectorRequest call(HS_ALLGATHER, data_);
    call.tensor.out_rows = rows;
    hs_template* made = nullptr;
    ASSERT_EQ(hs_prepare(runtime_, &call.request, &made), HS_OK) << hs_error()->message;
    std::vector<float> result(4);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(hs_run_again(made, AddressOf(data_), AddressOf(result), kDeadlineSeconds),
                rows == 3 ? HS_OK : HS_INVALID_ARGUMENT);
      EXPECT_EQ(result[2], rows == 3 ? 3 : 0);
    }
    hs_template_free(made);
  }
}

TEST_F(Templates, WhatIsNotDoneInTimeCanBeTaken) {
  hs_template* const doubling = Doubling();
  hs_code code = HS_OK;
  for (int i = 0; i < 10000 && code == HS_OK; ++i) {  // the progress thread may be faster
    code = hs_run_again(doubling, AddressOf(data_), AddressOf(data_), 0.0);
  }
  ASSERT_EQ(code, HS_TIMEOUT);
  hs_handle* const handle = hs_take_unfinished();
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(hs_take_unfinished(), nullptr);
  EXPECT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
  hs_handle_free(handle);
  hs_template_free(doubling);
}

TEST_F(Templates, SeveralThreadsUseOne) {
  hs_template* const doubling = Doubling();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int step = 0; step < 100; ++step) {
        std::vector<float> own(3, static_cast<float>(i + step));
        const hs_code code =
            hs_run_again(doubling, AddressOf(own), AddressOf(own), kDeadlineSeconds);
        if (code != HS_OK || own[2] != static_cast<float>(2 * (i + step))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  hs_template_free(doubling);
}

TEST_F(Templates, ResultsOfAnyNumberOfRowsNeedMemory) {
  for (const hs_kind kind : {HS_ALLGATHER, HS_ALLTOALL}) {
    VectorRequest call(kind, data_);
    call.tensor.in = call.tensor.out = nullptr;
    call.tensor.out_rows = 3;
    hs_template* made = nullptr;
    ASSERT_EQ(hs_prepare(runtime_, &call.request, &made), HS_OK) << hs_error()->message;
    for (int i = 0; i < 2; ++i) {
      std::vector<float> result(3);
      EXPECT_EQ(hs_run_again(made, AddressOf(data_), AddressOf(result), kDeadlineSeconds), HS_OK);
      EXPECT_EQ(result, data_);
    }
    EXPECT_EQ(hs_run_again(made, AddressOf(data_), 0, kDeadlineSeconds), HS_INVALID_ARGUMENT);
    EXPECT_EQ(hs_enqueue_again(made, AddressOf(data_), 0, 0), nullptr);
    hs_template_free(made);
  }
}

TEST_F(Templates, WhatCantBePreparedIsRefused) {
  hs_template* made = nullptr;
  VectorRequest gather(HS_GATHER, data_);
  EXPECT_EQ(hs_prepare(runtime_, &gather.request, &made), HS_INVALID_ARGUMENT);
  VectorRequest callback(HS_ALLREDUCE, data_);
  callback.request.callback = [](void*, hs_code) {};
  EXPECT_EQ(hs_prepare(runtime_, &callback.request, &made), HS_INVALID_ARGUMENT);
  VectorRequest none(HS_ALLREDUCE, data_);
  none.request.num_tensors = 0;
  EXPECT_EQ(hs_prepare(runtime_, &none.request, &made), HS_INVALID_ARGUMENT);
  VectorRequest unknown(HS_ALLREDUCE, data_);
  unknown.request.kind = 99;
  EXPECT_EQ(hs_prepare(runtime_, &unknown.request, &made), HS_INVALID_ARGUMENT);
  VectorRequest good(HS_ALLREDUCE, data_);
  EXPECT_EQ(hs_prepare(runtime_, &good.request, nullptr), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_prepare(runtime_, nullptr, &made), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_prepare(nullptr, &good.request, &made), HS_NOT_INITIALIZED);
  EXPECT_EQ(made, nullptr);
}

TEST_F(Templates, EachRunIsRefusedWhatAnEnqueueIs) {
  hs_template* const doubling = Doubling();
  EXPECT_EQ(hs_run_again(doubling, AddressOf(data_), 0, kDeadlineSeconds), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_enqueue_again(doubling, 0, AddressOf(data_), 0), nullptr);
  EXPECT_EQ(hs_error()->code, HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_enqueue_again(nullptr, 0, 0, 0), nullptr);
  EXPECT_EQ(hs_run_again(nullptr, 0, 0, 0), HS_INVALID_ARGUMENT);
  VectorRequest call(HS_ALLREDUCE, data_);
  call.request.process_set = 5;
  hs_template* elsewhere = nullptr;
  ASSERT_EQ(hs_prepare(runtime_, &call.request, &elsewhere), HS_OK);
  EXPECT_EQ(hs_run_again(elsewhere, AddressOf(data_), AddressOf(data_), kDeadlineSeconds),
            HS_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(hs_error()->message, "process set 5"), nullptr);
  EXPECT_EQ(hs_shutdown(runtime_), HS_OK);
  EXPECT_EQ(hs_run_again(doubling, AddressOf(data_), AddressOf(data_), kDeadlineSeconds),
            HS_SHUTDOWN);
  hs_template_free(elsewhere);
  hs_template_free(doubling);
}

TEST(TemplatesOfTwoRanks, ANameThatIsPendingIsRefused) {
  const Meeting meeting;
  std::atomic<bool> refused{false};
  RunRanks(meeting, 2, [&](int rank, hs_runtime* runtime) {
    std::vector<float> data(4, 1.0f);
    VectorRequest call(HS_ALLREDUCE, data);
    call.request.name = "one";
    hs_template* made = nullptr;
    EXPECT_EQ(hs_prepare(runtime, &call.request, &made), HS_OK);
    if (rank == 0) {
      hs_handle* const handle = hs_enqueue_again(made, AddressOf(data), AddressOf(data), 1);
      EXPECT_NE(handle, nullptr);
      EXPECT_EQ(hs_enqueue_again(made, AddressOf(data), AddressOf(data), 1), nullptr);
      EXPECT_EQ(hs_error()->code, HS_DUPLICATE_NAME);
      refused.store(true);  // in any case, since the other rank waits
      refused.notify_all();
      EXPECT_EQ(hs_wait(handle, kDeadlineSeconds), HS_OK);
      hs_handle_free(handle);
    } else {
      refused.wait(false);
      EXPECT_EQ(hs_run_again(made, AddressOf(data), AddressOf(data), kDeadlineSeconds), HS_OK);
    }
    hs_template_free(made);
  });
}

}  // namespace
}  // namespace horoscale
