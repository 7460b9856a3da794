// The time and the number of requests with which many ranks meet at a store. Ranks are threads of
// this process; the store and the sockets are real.
//
//     meeting_bench [ranks] [ranks of a host] [repeats]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "platform/descriptors.h"
#include "runtime/meeting.h"

namespace horoscale {
namespace {

constexpr double kDeadlineSeconds = 300;
constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

std::optional<EnvironmentVariable> NoVariable(std::string_view) { return std::nullopt; }

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Meet(StoreServer& server, int ranks, int ranks_of_host) {
  const double start = Now();
  const uint64_t before = server.requests();
  std::vector<std::thread> threads;
  std::vector<std::string> failures(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      JobOptions options;
      options.rank = rank;
      options.size = ranks;
      options.rendezvous = "127.0.0.1:" + std::to_string(server.port());
      options.served = true;
      options.secret = kSecret;
      const std::string host = "host" + std::to_string(rank / ranks_of_host);
      const auto met =
          MeetOverStore(options, Config(), NoVariable, host, Deadline::After(kDeadlineSeconds));
      if (!met.ok()) failures[static_cast<size_t>(rank)] = met.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d ranks, %d of a host: %.2f s, %.1f requests of each\n", ranks, ranks_of_host,
              Now() - start, static_cast<double>(server.requests() - before) / ranks);
  for (const std::string& failure : failures) {
    if (failure.empty()) continue;
    std::fprintf(stderr, "%s\n", failure.c_str());
    return 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1024;
  const int ranks_of_host = argc > 2 ? std::atoi(argv[2]) : 8;
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 3;
  RaiseDescriptorLimit();
  StoreServerOptions options;
  options.secret = kSecret;
  auto server = StoreServer::Start(options);
  if (!server.ok()) return 1;
  int failed = 0;
  for (int i = 0; i < repeats; ++i) failed |= Meet(**server, ranks, ranks_of_host);
  return failed;
}

}  // namespace
}  // namespace horoscale

int main(int argc, char** argv) { return horoscale::Main(argc, argv); }
