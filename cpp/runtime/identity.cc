#include "runtime/identity.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "platform/tcp_socket.h"
#include "rendezvous/secret.h"

namespace horoscale {
namespace {

// The option, else the variable as a number of at least `least`.
Result<std::optional<int>> Number(const std::optional<int>& option, std::string_view name,
                                  int least, const VariableLookup& lookup) {
  if (option) return option;
  const auto found = lookup(name);
  if (!found) return std::optional<int>();
  int value = 0;
  const char* const end = found->value.data() + found->value.size();
  const auto [parsed, error] = std::from_chars(found->value.data(), end, value);
  if (error != std::errc() || parsed != end || value < least) {
    return Status::InvalidArgument(found->name + "=\"" + found->value +
                                   "\" does not parse: expected a number of at least " +
                                   std::to_string(least));
  }
  return std::optional<int>(value);
}

// Empty if the ranks generate one.
Result<std::string> ReadSecret(const JobOptions& options, const HostPort& rendezvous,
                               const VariableLookup& lookup) {
  auto secret = FindSecret(options.secret, lookup);
  if (!secret.ok()) return secret.status();
  if (secret->has_value()) return std::move(**secret);
  if (IsLoopbackHost(rendezvous.host)) return std::string();
  return Status::InvalidArgument("the rendezvous is at " + rendezvous.host +
                                 ", which other hosts can reach: set HOROSCALE_SECRET or "
                                 "HOROSCALE_SECRET_FILE to the same secret for every rank");
}

}  // namespace

Result<std::optional<std::string>> FindSecret(const std::optional<std::string>& given,
                                              const VariableLookup& lookup) {
  std::string secret = given.value_or("");
  std::string source = "the argument of init";
  // An empty secret counts as unset: a script's command for it may have failed.
  if (const auto text = lookup("SECRET"); secret.empty() && text) {
    secret = text->value;
    source = text->name;
  }
  if (const auto path = lookup("SECRET_FILE"); secret.empty() && path) {
    auto content = ReadSecretFile(path->value);
    if (!content.ok()) return content.status();
    secret = content.TakeValue();
    source = "the file \"" + path->value + "\" (" + path->name + ")";
  }
  if (secret.empty()) return std::optional<std::string>();
  HS_RETURN_IF_ERROR(CheckSecretStrength(secret, source));
  return std::optional(std::move(secret));
}

Result<int> PositionIn(std::span<const int> chosen, int rank, int size) {
  std::string call = "hvd.init(comm=[";
  for (size_t i = 0; i < chosen.size(); ++i) {
    call += (i == 0 ? "" : ", ") + std::to_string(chosen[i]);
  }
  call += "])";
  const std::set<int> distinct(chosen.begin(), chosen.end());
  if (distinct.size() != chosen.size() || *distinct.begin() < 0 || *distinct.rbegin() >= size) {
    return Status::InvalidArgument(call + ": the ranks must be distinct and from 0 to " +
                                   std::to_string(size - 1));
  }
  const auto own = std::find(chosen.begin(), chosen.end(), rank);
  if (own == chosen.end()) {
    return Status::InvalidArgument(call + " was called by rank " + std::to_string(rank) +
                                   ", which is not one of them");
  }
  return static_cast<int>(own - chosen.begin());
}

Result<Identity> ReadIdentity(const JobOptions& options, const VariableLookup& lookup) {
  const auto rank = Number(options.rank, "RANK", 0, lookup);
  if (!rank.ok()) return rank.status();
  const auto size = Number(options.size, "SIZE", 1, lookup);
  if (!size.ok()) return size.status();
  Identity identity;
  if (rank->has_value() != size->has_value()) {
    return Status::InvalidArgument(
        "only one of HOROSCALE_RANK and HOROSCALE_SIZE is set: set both, or neither for a single "
        "rank");
  }
  identity.rank = rank->value_or(0);
  identity.size = size->value_or(1);
  if (identity.rank >= identity.size) {
    return Status::InvalidArgument("rank " + std::to_string(identity.rank) +
                                   " is out of range: the job has " +
                                   std::to_string(identity.size) + " ranks");
  }
  // RENDEZVOUS is on the host of rank 0, which serves it if it is among the ranks.
  const auto& ranks = options.ranks;
  const bool has_first = std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
  const int server = ranks.empty() || has_first ? 0 : ranks.front();
  const bool may_serve = identity.rank == server;
  if (!options.ranks.empty()) {
    const auto position = PositionIn(options.ranks, identity.rank, identity.size);
    if (!position.ok()) return position.status();
    identity.rank = *position;
    identity.size = static_cast<int>(options.ranks.size());
  }
  if (identity.size == 1) return identity;

  auto address = options.rendezvous;
  std::string named = "the rendezvous";
  if (!address) {
    if (const auto found = lookup("RENDEZVOUS")) {
      address = found->value;
      named = found->name;
    }
  }
  if (!address) {
    return Status::InvalidArgument(
        "the job has " + std::to_string(identity.size) +
        " ranks, but no rendezvous: start it with horoscalerun, or set "
        "HOROSCALE_RENDEZVOUS=host:port to an address on which rank 0 can listen");
  }
  auto rendezvous = ParseHostPort(*address);
  if (!rendezvous.ok()) {
    return Status::InvalidArgument(named + ": " + rendezvous.status().message());
  }
  identity.rendezvous = rendezvous.TakeValue();
  auto secret = ReadSecret(options, identity.rendezvous, lookup);
  if (!secret.ok()) return secret.status();
  identity.secret = secret.TakeValue();
  bool served = options.served.value_or(false);
  const auto variable = lookup("RENDEZVOUS_SERVED");
  if (!options.served && variable && !ParseSwitch(variable->value, &served)) {
    return Status::InvalidArgument(variable->name + "=\"" + variable->value +
                                   "\" does not parse: expected switch");
  }
  identity.serve = !served && may_serve;
  return identity;
}

}  // namespace horoscale
