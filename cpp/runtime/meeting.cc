#include "runtime/meeting.h"

#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "base/rank_list.h"
#include "rendezvous/local_secret.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/store_client.h"
#include "runtime/neighbours.h"
#include "runtime/same_version.h"

namespace horoscale {
namespace {

Status SetText(Store& store, const std::string& key, const std::string& text) {
  return store.Set(key, std::as_bytes(std::span(text)));
}

std::string TextOf(const std::vector<std::byte>& value) {
  return std::string(reinterpret_cast<const char*>(value.data()), value.size());
}

// Every rank shows its card and sees the others': by rank. It reads them only once it knows that
// rank 0 speaks the same version. If rank 0 does not come, all missing ranks are named below.
Result<std::vector<std::string>> ExchangeCards(StartingStore& store, const Identity& identity,
                                               const std::string& prefix, const std::string& own,
                                               const Deadline& deadline) {
  const std::string key = prefix + "host/";
  HS_RETURN_IF_ERROR(SetText(store, key + std::to_string(identity.rank), own));
  const Status version = CheckSameVersion(store, prefix, identity.rank, deadline);
  if (version.code() != StatusCode::kTimeout) HS_RETURN_IF_ERROR(version);
  std::vector<std::string> cards;
  std::vector<int> missing;
  for (int rank = 0; rank < identity.size; ++rank) {
    const auto card = store.Get(key + std::to_string(rank), deadline.SecondsLeft());
    if (card.ok()) {
      cards.push_back(TextOf(*card));
    } else if (card.status().code() == StatusCode::kTimeout) {
      missing.push_back(rank);
    } else {
      return card.status();
    }
  }
  if (missing.empty()) return cards;
  return Status(StatusCode::kTimeout,
                RankList(missing) + " of " + std::to_string(identity.size) +
                    " did not call init() in time (START_TIMEOUT says how long to wait)",
                {missing, -1, ""});
}

// Every rank tells a number and hears of the others': by rank. Rank 0 collects them, so that it
// costs each of the others one question.
Result<std::vector<int>> ExchangeNumbers(Store& store, const Identity& identity,
                                         const std::string& key, int own,
                                         const Deadline& deadline) {
  HS_RETURN_IF_ERROR(SetText(store, key + std::to_string(identity.rank), std::to_string(own)));
  if (identity.rank == 0) {
    std::string all;
    for (int rank = 0; rank < identity.size; ++rank) {
      const auto number = store.Get(key + std::to_string(rank), deadline.SecondsLeft());
      if (!number.ok()) return number.status();
      all += TextOf(*number) + " ";
    }
    HS_RETURN_IF_ERROR(SetText(store, key + "all", all));
  }
  const auto all = store.Get(key + "all", deadline.SecondsLeft());
  if (!all.ok()) return all.status();
  std::istringstream text(TextOf(*all));
  const std::vector<int> numbers{std::istream_iterator<int>(text), {}};
  if (numbers.size() == static_cast<size_t>(identity.size)) return numbers;
  return Status::Protocol("the store has " + std::to_string(numbers.size()) + " numbers of " +
                          std::to_string(identity.size) + " ranks at " + key + "all");
}

// Serves the store on rank 0, where the launcher does not. It is served until the process ends: a
// rank that calls init() again may come while this one has not left the job before, and what
// belonged to that job can be in use for longer still. Keys name their generation.
Status Serve(const Identity& identity) {
  struct Served {
    std::string given;                  // as the secret; empty: none
    std::optional<LocalSecret> secret;  // where none is given
    std::unique_ptr<StoreServer> server;
  };
  static std::mutex mutex;
  static auto& by_address = *new std::map<std::pair<std::string, uint16_t>, Served>;

  const HostPort& address = identity.rendezvous;
  std::lock_guard lock(mutex);
  Served& served = by_address[{address.host, address.port}];
  if (served.server && served.given == identity.secret) {
    // Again, because somebody may clean up in /tmp.
    return served.secret ? served.secret->Publish(address) : Status::Ok();
  }
  served = {identity.secret, std::nullopt, nullptr};
  StoreServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.secret = identity.secret;
  if (identity.secret.empty()) {
    auto secret = LocalSecret::Create();
    if (!secret.ok()) return secret.status();
    options.secret = secret->text();
    served.secret = secret.TakeValue();
  }
  auto started = StoreServer::Start(std::move(options));
  if (!started.ok()) {
    return {started.status().code(),
            "serving the rendezvous: " + started.status().message() +
                "; HOROSCALE_RENDEZVOUS must be a free port of the host of rank 0"};
  }
  // Not before: who else serves at this address may have published its own.
  if (served.secret) HS_RETURN_IF_ERROR(served.secret->Publish(address));
  served.server = started.TakeValue();
  return Status::Ok();
}

// With the secret that was given, or else the one that the store's server has made, which from now
// on is the rank's.
Result<std::unique_ptr<StoreClient>> ConnectToStore(Identity& identity, const Deadline& deadline) {
  const HostPort& address = identity.rendezvous;
  if (identity.secret.empty()) return ConnectWithLocalSecret(address, deadline, &identity.secret);
  return StoreClient::Connect(address.host, address.port, identity.secret, deadline.SecondsLeft());
}

Status MeetStore(const std::string& prefix, const Deadline& deadline, Meeting* meeting) {
  Identity& identity = meeting->identity;
  if (identity.size == 1) {
    meeting->store = std::make_unique<StartingStore>(std::make_unique<MemoryStore>(), prefix, 0);
    return {};
  }
  if (identity.serve) HS_RETURN_IF_ERROR(Serve(identity));
  auto client = ConnectToStore(identity, deadline);
  if (!client.ok()) return client.status();
  if (const auto address = (*client)->LocalAddress(); address.ok()) meeting->address = *address;
  auto store = StartingStore::Create(client.TakeValue(), prefix, identity.rank, deadline);
  if (!store.ok()) return store.status();
  meeting->store = store.TakeValue();
  return {};
}

// Which ranks share a host.
Status FindHosts(const std::string& prefix, const std::string& host, const Deadline& deadline,
                 Meeting* meeting) {
  const auto self = Neighbours::Create(host);
  if (!self.ok()) return self.status();
  const auto cards =
      ExchangeCards(*meeting->store, meeting->identity, prefix, self->card(), deadline);
  if (!cards.ok()) return cards.status();
  const int own =
      Neighbours::FindLowest(*cards, meeting->identity.rank, deadline, &meeting->notice);
  const auto lowest =
      ExchangeNumbers(*meeting->store, meeting->identity, prefix + "lowest/", own, deadline);
  if (!lowest.ok()) return lowest.status();
  auto hosts = HostsOf(*cards, *lowest);
  if (!hosts.ok()) return hosts.status();
  meeting->hosts = hosts.TakeValue();
  return {};
}

}  // namespace

std::string KeyPrefix(const JobOptions& options) {
  return "init" + std::to_string(options.generation) + "/";
}

Result<Meeting> MeetOverStore(const JobOptions& options, const VariableLookup& lookup,
                              const std::string& host, const Deadline& deadline) {
  Meeting meeting;
  auto identity = ReadIdentity(options, lookup);
  if (!identity.ok()) return identity.status();
  meeting.identity = identity.TakeValue();
  const std::string prefix = KeyPrefix(options);
  HS_RETURN_IF_ERROR(MeetStore(prefix, deadline, &meeting));
  const Status found = FindHosts(prefix, host, deadline, &meeting);
  if (!found.ok()) return meeting.store->Explain(found);
  return meeting;
}

}  // namespace horoscale
