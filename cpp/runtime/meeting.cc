#include "runtime/meeting.h"

#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "rendezvous/memory_store.h"
#include "rendezvous/store_client.h"
#include "runtime/rank_list.h"

namespace horoscale {
namespace {

// Every rank tells its host and hears of the others': the hosts by rank.
Result<std::vector<std::string>> ExchangeHosts(Store& store, const Identity& identity,
                                               const std::string& prefix,
                                               const std::string& own_host,
                                               const Deadline& deadline) {
  const std::string key = prefix + "host/";
  HS_RETURN_IF_ERROR(store.Set(key + std::to_string(identity.rank),
                               std::as_bytes(std::span(own_host.data(), own_host.size()))));
  std::vector<std::string> hosts;
  std::vector<int> missing;
  for (int rank = 0; rank < identity.size; ++rank) {
    const auto host = store.Get(key + std::to_string(rank), deadline.SecondsLeft());
    if (host.ok()) {
      hosts.emplace_back(reinterpret_cast<const char*>(host->data()), host->size());
    } else if (host.status().code() == StatusCode::kTimeout) {
      missing.push_back(rank);
    } else {
      return host.status();
    }
  }
  if (missing.empty()) return hosts;
  return Status(StatusCode::kTimeout,
                RankList(missing) + " of " + std::to_string(identity.size) +
                    " did not call init() in time (START_TIMEOUT says how long to wait)",
                {missing, -1, ""});
}

// Serves the store on rank 0, where the launcher does not. It is served until the process ends: a
// rank that calls init() again may come while this one has not left the job before, and what
// belonged to that job can be in use for longer still. Keys name their generation.
Status Serve(const Identity& identity) {
  struct Served {
    std::string secret;
    std::unique_ptr<StoreServer> server;
  };
  static std::mutex mutex;
  static auto& by_address = *new std::map<std::pair<std::string, uint16_t>, Served>;

  const HostPort& address = identity.rendezvous;
  std::lock_guard lock(mutex);
  Served& served = by_address[{address.host, address.port}];
  if (served.server && served.secret == identity.secret) return Status::Ok();
  served.server.reset();
  StoreServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.secret = identity.secret;
  auto started = StoreServer::Start(std::move(options));
  if (!started.ok()) {
    return {started.status().code(),
            "serving the rendezvous: " + started.status().message() +
                "; HOROSCALE_RENDEZVOUS must be a free port of the host of rank 0"};
  }
  served = {identity.secret, started.TakeValue()};
  return Status::Ok();
}

Status MeetStore(double seconds, Meeting* meeting) {
  const Identity& identity = meeting->identity;
  if (identity.size == 1) {
    meeting->store = std::make_unique<MemoryStore>();
    return {};
  }
  if (identity.serve) HS_RETURN_IF_ERROR(Serve(identity));
  auto client = StoreClient::Connect(identity.rendezvous.host, identity.rendezvous.port,
                                     identity.secret, seconds);
  if (!client.ok()) return client.status();
  if (const auto address = (*client)->LocalAddress(); address.ok()) meeting->address = *address;
  meeting->store = client.TakeValue();
  return {};
}

}  // namespace

std::string KeyPrefix(const JobOptions& options) {
  return "init" + std::to_string(options.generation) + "/";
}

Result<Meeting> MeetOverStore(const JobOptions& options, const VariableLookup& lookup,
                              std::string host, const Deadline& deadline) {
  Meeting meeting;
  auto identity = ReadIdentity(options, lookup);
  if (!identity.ok()) return identity.status();
  meeting.identity = identity.TakeValue();
  HS_RETURN_IF_ERROR(MeetStore(deadline.SecondsLeft(), &meeting));
  auto hosts = ExchangeHosts(*meeting.store, meeting.identity, KeyPrefix(options), host, deadline);
  if (!hosts.ok()) return hosts.status();
  meeting.hosts = hosts.TakeValue();
  meeting.host = std::move(host);
  return meeting;
}

}  // namespace horoscale
