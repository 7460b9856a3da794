#include "rendezvous/local_secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <optional>
#include <string>

#include "platform/tcp_socket.h"

namespace horoscale {
namespace {

constexpr double kLong = 60;

std::string PathOf(const HostPort& address) {
  return "/tmp/horoscale-" + std::to_string(geteuid()) + "/" + std::to_string(address.port);
}

mode_t ModeOf(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

class LocalSecretTest : public ::testing::Test {
 protected:
  // An address that no other process uses during this object's lifetime.
  void SetUp() override {
    auto taken = TcpListener::Create("127.0.0.1", 0);
    ASSERT_TRUE(taken.ok());
    port_holder_.emplace(taken.TakeValue());
    address_ = {"127.0.0.1", port_holder_->port()};
    unlink(PathOf(address_).c_str());  // of a job that was killed
  }

  LocalSecret Published() {
    auto secret = LocalSecret::Create();
    EXPECT_TRUE(secret.ok());
    const Status status = secret->Publish(address_);
    EXPECT_TRUE(status.ok()) << status.message();
    return secret.TakeValue();
  }

  std::unique_ptr<StoreServer> Serve(const std::string& secret) {
    StoreServerOptions options;
    options.secret = secret;
    auto server = StoreServer::Start(options);
    EXPECT_TRUE(server.ok()) << server.status().message();
    return server.TakeValue();
  }

  std::optional<TcpListener> port_holder_;
  HostPort address_;
};

TEST_F(LocalSecretTest, IsFoundByItsUserWhileItLives) {
  EXPECT_EQ(LocalSecret::Read(address_).status().code(), StatusCode::kTimeout);
  {
    const LocalSecret secret = Published();
    const auto found = LocalSecret::Read({"localhost", address_.port});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, secret.text());
    EXPECT_EQ(ModeOf(PathOf(address_)), 0600u);
    EXPECT_EQ(ModeOf("/tmp/horoscale-" + std::to_string(geteuid())), 0700u);
  }
  EXPECT_NE(access(PathOf(address_).c_str(), F_OK), 0);
}

TEST_F(LocalSecretTest, ALaterOneReplacesItAndStays) {
  std::optional<LocalSecret> first = Published();
  const LocalSecret second = Published();
  EXPECT_EQ(*LocalSecret::Read(address_), second.text());
  first.reset();
  EXPECT_EQ(*LocalSecret::Read(address_), second.text());
}

TEST_F(LocalSecretTest, IsRemovedWhenItsProcessExitsAndNotByItsChildren) {
  const LocalSecret kept = Published();
  const pid_t child = fork();
  if (child == 0) exit(0);  // runs the exit handlers
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(*LocalSecret::Read(address_), kept.text());

  const HostPort other = {"127.0.0.9", address_.port};
  const pid_t maker = fork();
  if (maker == 0) {
    static auto* const leaked = new LocalSecret(LocalSecret::Create().TakeValue());
    if (!leaked->Publish(other).ok() || !LocalSecret::Read(other).ok()) _exit(1);
    exit(0);
  }
  ASSERT_EQ(waitpid(maker, &status, 0), maker);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(LocalSecret::Read(other).status().code(), StatusCode::kTimeout);
}

TEST_F(LocalSecretTest, AFileThatOthersCanReadIsNotUsed) {
  const LocalSecret secret = Published();
  ASSERT_EQ(chmod(PathOf(address_).c_str(), 0644), 0);
  EXPECT_EQ(LocalSecret::Read(address_).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(unlink(PathOf(address_).c_str()), 0);
  ASSERT_EQ(symlink("/etc/hostname", PathOf(address_).c_str()), 0);
  EXPECT_EQ(LocalSecret::Read(address_).status().code(), StatusCode::kSystem);
  ASSERT_EQ(unlink(PathOf(address_).c_str()), 0);
}

TEST_F(LocalSecretTest, AClientWaitsForTheServerToPublish) {
  auto secret = LocalSecret::Create();
  ASSERT_TRUE(secret.ok());
  const auto server = Serve(secret->text());
  const HostPort at = {"127.0.0.1", server->port()};
  std::string found;
  auto client = std::async(std::launch::async, [&] {
    return ConnectWithLocalSecret(at, Deadline::After(kLong), &found).status();
  });
  ASSERT_TRUE(secret->Publish(at).ok());
  EXPECT_TRUE(client.get().ok());
  EXPECT_EQ(found, secret->text());
}

// A secret that a killed job left behind is read, refused by the new job's store, and dropped once
// the new secret is there.
TEST_F(LocalSecretTest, AnEarlierJobsSecretIsNotMistakenForThisOnes) {
  auto secret = LocalSecret::Create();
  ASSERT_TRUE(secret.ok());
  const auto server = Serve(secret->text());
  address_ = {"127.0.0.1", server->port()};
  const LocalSecret stale = Published();
  std::string found;
  EXPECT_EQ(ConnectWithLocalSecret(address_, Deadline::After(0.2), &found).status().code(),
            StatusCode::kUnauthenticated);
  auto client = std::async(std::launch::async, [&] {
    return ConnectWithLocalSecret(address_, Deadline::After(kLong), &found).status();
  });
  ASSERT_TRUE(secret->Publish(address_).ok());
  EXPECT_TRUE(client.get().ok());
  EXPECT_EQ(found, secret->text());
}

TEST_F(LocalSecretTest, WhoWaitsInVainIsToldWhy) {
  std::string found;
  const Status status = ConnectWithLocalSecret(address_, Deadline::After(0), &found).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_NE(status.message().find(PathOf(address_)), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("HOROSCALE_SECRET"), std::string::npos);
}

}  // namespace
}  // namespace horoscale
