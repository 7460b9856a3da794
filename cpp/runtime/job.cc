#include "runtime/job.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/deadline.h"
#include "platform/environment.h"
#include "platform/log.h"
#include "platform/process.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"
#include "runtime/identity.h"
#include "runtime/rank_list.h"
#include "transport/shm/shm_transport.h"

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

Result<std::unique_ptr<Store>> MeetStore(const Identity& identity, double seconds) {
  if (identity.size == 1) return std::unique_ptr<Store>(std::make_unique<MemoryStore>());
  if (identity.serve) HS_RETURN_IF_ERROR(Serve(identity));
  auto client = StoreClient::Connect(identity.rendezvous.host, identity.rendezvous.port,
                                     identity.secret, seconds);
  if (!client.ok()) return client.status();
  return std::unique_ptr<Store>(client.TakeValue());
}

// Nobody leaves init() before everybody has all of its links, so that a rank that ends early, or
// the store that it serves, is not missed by another one that still starts.
Status MeetAll(Runtime& runtime, double seconds) {
  const auto barrier = std::make_shared<Operation>();
  barrier->request.name = "horoscale.init";
  barrier->request.signature.kind = OpKind::kBarrier;
  HS_RETURN_IF_ERROR(runtime.Enqueue(barrier, true));
  return runtime.Wait(barrier, seconds);
}

}  // namespace

Result<std::unique_ptr<Job>> Job::Join(const JobOptions& options) {
  auto config = ReadConfig(FindVariable);
  if (!config.ok()) return config.status();
  auto identity = ReadIdentity(options, FindVariable);
  if (!identity.ok()) return identity.status();
  ConfigureLog(config->log_level, config->log_time, identity->rank);

  const Deadline deadline = Deadline::After(config->start_timeout_seconds);
  std::unique_ptr<Job> job(new Job);
  auto store = MeetStore(*identity, deadline.SecondsLeft());
  if (!store.ok()) return store.status();
  job->store_ = store.TakeValue();

  const std::string prefix = "init" + std::to_string(options.generation) + "/";
  const auto host_variable = FindVariable("HOSTNAME");
  const std::string host =
      HostIdentity(host_variable ? std::optional<std::string>(host_variable->value) : std::nullopt);
  const auto hosts = ExchangeHosts(*job->store_, *identity, prefix, host, deadline);
  if (!hosts.ok()) return hosts.status();

  ShmConfig shm;
  shm.rank = identity->rank;
  shm.size = identity->size;
  shm.arena_bytes = static_cast<size_t>(config->arena_bytes);
  shm.mesh = {host, prefix, identity->secret, deadline.SecondsLeft()};
  auto transport = ShmTransport::Create(shm, *job->store_);
  if (!transport.ok()) return transport.status();

  const std::string timeline_path = config->timeline_path;
  const bool mark_cycles = config->timeline_mark_cycles;
  job->runtime_ = std::make_unique<Runtime>(config.TakeValue(), TopologyOf(identity->rank, *hosts),
                                            transport.TakeValue());
  HS_RETURN_IF_ERROR(MeetAll(*job->runtime_, deadline.SecondsLeft()));
  if (!timeline_path.empty()) {
    HS_RETURN_IF_ERROR(job->runtime_->StartTimeline(timeline_path, mark_cycles));
  }
  return job;
}

}  // namespace horoscale
