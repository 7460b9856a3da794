// Messages through the C ABI: results and errors.
#include "unit/capi/job.h"

namespace horoscale {
namespace {

class MessagesOfOneRank : public ::testing::Test {
 protected:
  void SetUp() override {
    hs_init_options options = {};
    options.struct_size = sizeof options;
    options.rank = 0;
    options.size = 1;
    options.serve_rendezvous = -1;
    ASSERT_EQ(hs_init(&options, &runtime_), HS_OK) << hs_error()->message;
    message_.struct_size = sizeof message_;
    message_.tag = 7;
    message_.dtype = HS_FLOAT32;
    message_.count = 3;
    message_.memory = data_;
  }
  void TearDown() override { hs_runtime_free(runtime_); }

  hs_code Refusal() {
    hs_handle* handle = nullptr;
    const hs_code code = hs_send(runtime_, &message_, &handle);
    EXPECT_EQ(handle, nullptr);
    return code;
  }

  hs_runtime* runtime_ = nullptr;
  hs_message message_ = {};
  float data_[3] = {1, 2, 3};
};

TEST_F(MessagesOfOneRank, ComeFromTheRankThatSent) {
  float received[3] = {};
  hs_message receive = message_;
  receive.memory = received;
  receive.peer = -1;
  hs_handle* handles[2] = {};
  ASSERT_EQ(hs_recv(runtime_, &receive, &handles[0]), HS_OK);
  ASSERT_EQ(hs_send(runtime_, &message_, &handles[1]), HS_OK);
  for (hs_handle* handle : handles) {
    EXPECT_EQ(hs_wait(handle, testing::kDeadlineSeconds), HS_OK);
  }
  EXPECT_EQ(hs_result(handles[0]), 0);
  EXPECT_EQ(received[2], 3);
  for (hs_handle* handle : handles) hs_handle_free(handle);
}

TEST_F(MessagesOfOneRank, AreWorkUntilTheyAreDone) {
  EXPECT_EQ(hs_is_busy(runtime_), 0);
  hs_handle* handles[2] = {};
  float received[3] = {};
  hs_message receive = message_;
  receive.memory = received;
  ASSERT_EQ(hs_recv(runtime_, &receive, &handles[0]), HS_OK);
  EXPECT_EQ(hs_is_busy(runtime_), 1);
  ASSERT_EQ(hs_send(runtime_, &message_, &handles[1]), HS_OK);
  for (hs_handle* handle : handles) {
    EXPECT_EQ(hs_wait(handle, testing::kDeadlineSeconds), HS_OK);
    hs_handle_free(handle);
  }
  EXPECT_EQ(hs_is_busy(runtime_), 0);
  EXPECT_EQ(hs_is_busy(nullptr), 0);
}

// A rank views its messages to itself in place; small ones have been copied.
TEST_F(MessagesOfOneRank, AreSeenUntilTheyAreReleased) {
  for (const int64_t count : {int64_t{0}, int64_t{3}, int64_t{100'000}}) {
    std::vector<float> sent(static_cast<size_t>(count), 7);
    message_.count = count;
    message_.memory = sent.data();
    hs_message receive = message_;
    receive.memory = nullptr;
    receive.is_view = 1;
    hs_handle* handles[2] = {};
    ASSERT_EQ(hs_recv(runtime_, &receive, &handles[0]), HS_OK);
    EXPECT_EQ(hs_view(handles[0]), nullptr);
    ASSERT_EQ(hs_send(runtime_, &message_, &handles[1]), HS_OK);
    ASSERT_EQ(hs_wait(handles[0], testing::kDeadlineSeconds), HS_OK);
    const auto* seen = static_cast<const float*>(hs_view(handles[0]));
    if (count == 100'000) {
      EXPECT_EQ(seen, sent.data());
      EXPECT_EQ(hs_wait(handles[1], 0), HS_TIMEOUT);
    } else if (count > 0) {
      EXPECT_NE(seen, sent.data());
      EXPECT_EQ(seen[count - 1], 7);
    }
    EXPECT_EQ(hs_release(runtime_, handles[0]), HS_OK);
    EXPECT_EQ(hs_wait(handles[1], testing::kDeadlineSeconds), HS_OK);
    hs_view_free(runtime_, handles[0]);
    hs_handle_free(handles[1]);
  }
}

TEST_F(MessagesOfOneRank, AreGivenBackByAViewThatNobodyWaitsFor) {
  std::vector<float> sent(100'000);
  message_.count = 100'000;
  message_.memory = sent.data();
  hs_message receive = message_;
  receive.memory = nullptr;
  receive.is_view = 1;
  hs_handle* handles[2] = {};
  ASSERT_EQ(hs_recv(runtime_, &receive, &handles[0]), HS_OK);
  hs_view_free(runtime_, handles[0]);
  ASSERT_EQ(hs_send(runtime_, &message_, &handles[1]), HS_OK);
  EXPECT_EQ(hs_wait(handles[1], testing::kDeadlineSeconds), HS_OK);
  EXPECT_EQ(hs_release(runtime_, handles[1]), HS_INVALID_ARGUMENT);
  hs_handle_free(handles[1]);
}

TEST_F(MessagesOfOneRank, AreGivenBackQuietlyAfterTheEnd) {
  std::vector<float> sent(100'000);
  message_.count = 100'000;
  message_.memory = sent.data();
  hs_message receive = message_;
  receive.memory = nullptr;
  receive.is_view = 1;
  hs_handle* handles[2] = {};
  ASSERT_EQ(hs_recv(runtime_, &receive, &handles[0]), HS_OK);
  ASSERT_EQ(hs_send(runtime_, &message_, &handles[1]), HS_OK);
  ASSERT_EQ(hs_wait(handles[0], testing::kDeadlineSeconds), HS_OK);
  ASSERT_EQ(hs_shutdown(runtime_), HS_OK);
  EXPECT_EQ(hs_wait(handles[1], testing::kDeadlineSeconds), HS_SHUTDOWN);
  EXPECT_EQ(hs_release(runtime_, handles[0]), HS_OK);
  hs_view_free(runtime_, handles[0]);
  hs_handle_free(handles[1]);
}

TEST_F(MessagesOfOneRank, TellAMismatch) {
  hs_message receive = message_;
  receive.count = 2;
  hs_handle* handles[2] = {};
  ASSERT_EQ(hs_recv(runtime_, &receive, &handles[0]), HS_OK);
  ASSERT_EQ(hs_send(runtime_, &message_, &handles[1]), HS_OK);
  EXPECT_EQ(hs_wait(handles[0], testing::kDeadlineSeconds), HS_MISMATCH);
  EXPECT_STREQ(hs_error()->tensor, "recv from rank 0, tag 7");
  for (hs_handle* handle : handles) hs_handle_free(handle);
}

TEST_F(MessagesOfOneRank, RefuseWrongArguments) {
  const hs_message good = message_;
  message_.struct_size = 8;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).peer = 1;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).peer = -1;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).tag = -1;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).channel = 256;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).dtype = 13;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).count = -1;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).count = int64_t{1} << 62;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).memory = nullptr;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  (message_ = good).process_set = 5;
  EXPECT_EQ(Refusal(), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_send(runtime_, nullptr, nullptr), HS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace horoscale
