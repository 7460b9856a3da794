#include "runtime/meeting.h"

#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "platform/tcp_socket.h"
#include "rendezvous/local_secret.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/sha256.h"
#include "rendezvous/store_client.h"
#include "runtime/neighbours.h"
#include "runtime/same_version.h"

namespace horoscale {
namespace {

// The data that a rank sends to all others.
struct Place {
  int lowest = 0;            // the lowest rank that shares memory with it
  bool on_loopback = false;  // it reaches the store over loopback
};

Result<std::vector<Place>> ExchangePlaces(StartingStore& store, const Identity& identity,
                                          const Place& own, const Deadline& deadline) {
  const std::string text = std::to_string(kWireVersion) + " " + std::to_string(own.lowest) +
                           (own.on_loopback ? " 1" : " 0");
  const std::string key = store.prefix() + "places";
  GatherRequest request;
  request.key = key;
  request.place = static_cast<uint32_t>(identity.rank);
  request.count = static_cast<uint32_t>(identity.size);
  request.value = std::as_bytes(std::span(text));
  const auto gathered = store.Gather(request, deadline.SecondsLeft());
  if (!gathered.ok()) return gathered.status();
  std::vector<Place> places;
  std::vector<uint32_t> versions;
  for (const auto& [rank, value] : gathered->values) {
    const auto* const begin = reinterpret_cast<const char*>(value.data());
    const char* const end = begin + value.size();
    const auto version = std::from_chars(begin, end, versions.emplace_back());
    if (version.ec != std::errc() || version.ptr == end) break;
    Place place;
    const auto lowest = std::from_chars(version.ptr + 1, end, place.lowest);
    if (lowest.ec != std::errc() || end - lowest.ptr != 2) continue;  // perhaps another version
    place.on_loopback = lowest.ptr[1] == '1';
    places.push_back(place);
  }
  HS_RETURN_IF_ERROR(CheckSameVersion(versions));
  if (places.size() == static_cast<size_t>(identity.size)) return places;
  return Status::Protocol("the store has the addresses of " + std::to_string(places.size()) +
                          " of " + std::to_string(identity.size) + " ranks");
}

// Serves the store on rank 0, if the launcher does not. It is served until the process exits: a
// rank that calls init() again may connect before this one has left the previous job, and entries
// of that job may be in use even longer. Keys contain their round.
Status Serve(const Identity& identity, bool encrypt) {
  struct Served {
    std::string given;                  // as the secret; empty: none
    std::optional<LocalSecret> secret;  // where none is given
    bool encrypt = false;
    std::unique_ptr<StoreServer> server;
  };
  static std::mutex mutex;
  static auto& by_address = *new std::map<std::pair<std::string, uint16_t>, Served>;

  const HostPort& address = identity.rendezvous;
  std::lock_guard lock(mutex);
  Served& served = by_address[{address.host, address.port}];
  if (served.server && served.given == identity.secret && served.encrypt == encrypt) {
    // Publish it again, because /tmp may have been cleaned up.
    return served.secret ? served.secret->Publish(address) : Status::Ok();
  }
  served = {identity.secret, std::nullopt, encrypt, nullptr};
  StoreServerOptions options;
  options.hosts = {address.host};
  options.port = address.port;
  options.secret = identity.secret;
  options.encrypt = encrypt;
  if (identity.secret.empty()) {
    auto secret = LocalSecret::Create();
    if (!secret.ok()) return secret.status();
    options.secret = secret->text();
    served.secret = secret.TakeValue();
  }
  auto started = StoreServer::Start(std::move(options));
  if (!started.ok()) {
    return {started.status().code(),
            "rank 0 can't serve the rendezvous: " + started.status().message() +
                "; HOROSCALE_RENDEZVOUS must name a free port on rank 0's host"};
  }
  // Not earlier: another process that serves at this address may have published its own.
  if (served.secret) HS_RETURN_IF_ERROR(served.secret->Publish(address));
  served.server = started.TakeValue();
  return Status::Ok();
}

// Connects with the given secret, or else with that of the store's server, which becomes the
// rank's.
Result<std::unique_ptr<StoreClient>> ConnectToStore(Identity& identity, bool encrypt,
                                                    const Deadline& deadline) {
  const HostPort& address = identity.rendezvous;
  if (identity.secret.empty()) {
    return ConnectWithLocalSecret(address, deadline, &identity.secret, encrypt);
  }
  return StoreClient::Connect(address.host, address.port, identity.secret, deadline.SecondsLeft(),
                              encrypt);
}

// Joins the others at the store, with the data for ranks with the same host name.
Status JoinAtStore(const JobOptions& options, bool encrypt, std::string_view host,
                   const std::string& card, const Deadline& deadline, Meeting* meeting) {
  Identity& identity = meeting->identity;
  const std::string job = JobKey(options);
  if (identity.size == 1) {
    meeting->store = std::make_unique<StartingStore>(std::make_unique<MemoryStore>(), job, 0);
    return {};
  }
  if (identity.serve) HS_RETURN_IF_ERROR(Serve(identity, encrypt));
  auto client = ConnectToStore(identity, encrypt, deadline);
  if (!client.ok()) return client.status();
  if (const auto address = (*client)->LocalAddress(); address.ok()) meeting->address = *address;
  auto store = StartingStore::Join(client.TakeValue(),
                                   {job, identity.rank, identity.size, host, card}, deadline);
  if (!store.ok()) return store.status();
  meeting->store = store.TakeValue();
  return {};
}

// Determines which ranks share a host.
Status FindHosts(std::string_view host, const Deadline& deadline, Meeting* meeting) {
  const Identity& identity = meeting->identity;
  Place own;
  own.lowest = Neighbours::FindLowest(meeting->store->cards(), identity.rank, host, deadline,
                                      &meeting->notice);
  own.on_loopback = IsLoopbackAddress(meeting->address);
  const auto places = ExchangePlaces(*meeting->store, identity, own, deadline);
  if (!places.ok()) return places.status();
  std::vector<int> lowest;
  meeting->on_loopback = true;
  for (const Place& place : *places) {
    lowest.push_back(place.lowest);
    meeting->on_loopback &= place.on_loopback;
  }
  auto hosts = HostsOf(lowest);
  if (!hosts.ok()) return hosts.status();
  meeting->hosts = hosts.TakeValue();
  return {};
}

}  // namespace

std::string JobKey(const JobOptions& options) {
  // The driver of an elastic job cancels the start of a view with these keys (see FailedKey()).
  if (options.view != 0) return "view-" + std::to_string(options.view) + "-";
  if (options.ranks.empty()) return "init";
  // Jobs of different ranks may run concurrently.
  Sha256 ranks;
  ranks.Update(std::as_bytes(std::span(options.ranks)));
  const Sha256Digest digest = ranks.Finish();
  std::string text;
  for (size_t i = 0; i < 8; ++i) {
    const auto value = std::to_integer<unsigned>(digest[i]);
    text += {"0123456789abcdef"[value >> 4], "0123456789abcdef"[value & 15]};
  }
  return "init-" + text + "-";
}

Result<Meeting> MeetOverStore(const JobOptions& options, const Config& config,
                              const VariableLookup& lookup, const std::string& host,
                              const Deadline& deadline) {
  Meeting meeting;
  auto identity = ReadIdentity(options, lookup);
  if (!identity.ok()) return identity.status();
  meeting.identity = identity.TakeValue();
  const auto self = Neighbours::Create();
  if (!self.ok()) return self.status();
  HS_RETURN_IF_ERROR(JoinAtStore(options, config.encrypt, host, self->card(), deadline, &meeting));
  const Status found = FindHosts(host, deadline, &meeting);
  if (!found.ok()) return meeting.store->Explain(found);
  return meeting;
}

}  // namespace horoscale
