// Library information in the C ABI, errors per thread, and the key-value store.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "unit/capi/job.h"

namespace horoscale {
namespace {

using testing::kDeadlineSeconds;

TEST(Library, TellsItsVersionsAndVariables) {
  EXPECT_EQ(hs_abi_version(), HS_ABI_VERSION);
  EXPECT_GE(std::count(hs_version(), hs_version() + std::strlen(hs_version()), '.'), 2);
  EXPECT_NE(std::strstr(hs_build_info(), "\"native\": {\"available\": true}"), nullptr);
  EXPECT_NE(std::strstr(hs_config_variables(), "\"name\": \"FUSION_THRESHOLD\""), nullptr);
}

TEST(Library, EachThreadHasItsOwnLastError) {
  EXPECT_EQ(hs_check_reduction(HS_BOOL, HS_AVERAGE), HS_UNSUPPORTED);
  const std::string own = hs_error()->message;
  std::thread([] {
    EXPECT_EQ(hs_error()->code, HS_OK);
    EXPECT_EQ(hs_check_reduction(HS_COMPLEX64, HS_MIN), HS_UNSUPPORTED);
    EXPECT_NE(std::strstr(hs_error()->message, "complex64"), nullptr);
  }).join();
  EXPECT_EQ(hs_error()->message, own);
  EXPECT_EQ(hs_error()->num_ranks, 0);
}

TEST(Store, KeepsWhatIsSetAndWaitsForWhatIsNot) {
  hs_store_server* server = nullptr;
  int32_t port = 0;
  ASSERT_EQ(hs_store_serve("127.0.0.1", 0, "secret", 0, &server, &port), HS_OK);
  hs_store_client* client = nullptr;
  EXPECT_EQ(hs_store_connect("127.0.0.1", port, "wrong", 0, kDeadlineSeconds, &client),
            HS_UNAUTHENTICATED);
  EXPECT_EQ(client, nullptr);
  ASSERT_EQ(hs_store_connect("127.0.0.1", port, "secret", 0, kDeadlineSeconds, &client), HS_OK);
  EXPECT_EQ(hs_store_set(client, "key", "value", 5), HS_OK);
  EXPECT_EQ(hs_store_set(client, "key", "other", 5), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_store_set(client, "empty", nullptr, 0), HS_OK);
  void* value = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(hs_store_get(client, "key", kDeadlineSeconds, &value, &bytes), HS_OK);
  EXPECT_EQ(std::string(static_cast<char*>(value), bytes), "value");
  hs_free(value);
  ASSERT_EQ(hs_store_get(client, "empty", kDeadlineSeconds, &value, &bytes), HS_OK);
  EXPECT_EQ(bytes, 0u);
  hs_free(value);
  EXPECT_EQ(hs_store_get(client, "nobody sets it", 0.01, &value, &bytes), HS_TIMEOUT);
  EXPECT_EQ(value, nullptr);
  EXPECT_EQ(hs_store_get(client, nullptr, 0, &value, &bytes), HS_INVALID_ARGUMENT);
  hs_store_client_free(client);
  hs_store_server_free(server);
  EXPECT_EQ(hs_store_serve("127.0.0.1", 70000, "secret", 0, &server, &port), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_store_serve(nullptr, 0, "secret", 0, &server, &port), HS_INVALID_ARGUMENT);
}

TEST(Store, WithoutASecretItIsForProcessesOfTheUserOnThisHost) {
  hs_store_server* server = nullptr;
  int32_t port = 0;
  ASSERT_EQ(hs_store_serve("localhost", 0, nullptr, 0, &server, &port), HS_OK);
  hs_store_client* client = nullptr;
  ASSERT_EQ(hs_store_connect("localhost", port, nullptr, 0, kDeadlineSeconds, &client), HS_OK);
  EXPECT_EQ(hs_store_set(client, "key", "value", 5), HS_OK);
  hs_store_client_free(client);
  EXPECT_EQ(hs_store_connect("localhost", port, "", 0, kDeadlineSeconds, &client),
            HS_UNAUTHENTICATED);
  hs_store_server_free(server);
  EXPECT_EQ(hs_store_connect("localhost", port, nullptr, 0, 0, &client), HS_TIMEOUT);
  EXPECT_EQ(hs_store_serve("0.0.0.0", 0, nullptr, 0, &server, &port), HS_INVALID_ARGUMENT);
  EXPECT_EQ(hs_store_serve("127.0.0.1", 0, "", 0, &server, &port), HS_INVALID_ARGUMENT);
}

TEST(JobSecret, IsThatOfTheVariables) {
  char* secret = nullptr;
  ASSERT_EQ(setenv("HOROSCALE_SECRET", "", 1), 0);
  EXPECT_EQ(hs_job_secret(&secret), HS_OK);
  EXPECT_EQ(secret, nullptr);
  const char strong[] = "3b1c9d5e7f20486a3b1c9d5e7f20486a";
  ASSERT_EQ(setenv("HOROSCALE_SECRET", strong, 1), 0);
  ASSERT_EQ(hs_job_secret(&secret), HS_OK);
  EXPECT_STREQ(secret, strong);
  hs_free(secret);
  ASSERT_EQ(setenv("HOROSCALE_SECRET", "weak", 1), 0);
  EXPECT_EQ(hs_job_secret(&secret), HS_INVALID_ARGUMENT);
  ASSERT_EQ(unsetenv("HOROSCALE_SECRET"), 0);
}

}  // namespace
}  // namespace horoscale
