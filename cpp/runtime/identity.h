// Identity: rank, size and rendezvous of this process, as its caller or its environment say.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "rendezvous/address.h"
#include "runtime/config.h"
#include "runtime/job.h"

namespace horoscale {

struct Identity {
  int rank = 0;
  int size = 1;
  HostPort rendezvous;  // where size > 1, as the following
  bool serve = false;   // this rank serves the store
  std::string secret;   // empty: none was given, and the store is on loopback (see LocalSecret)
};

// The job's secret, if the caller or the variables SECRET and SECRET_FILE say what it is.
// kInvalidArgument if it is too easy to guess, or others can read the file.
Result<std::optional<std::string>> FindSecret(const std::optional<std::string>& given,
                                              const VariableLookup& lookup);

// kInvalidArgument names the variable that is missing or does not parse, and says what it may be.
Result<Identity> ReadIdentity(const JobOptions& options, const VariableLookup& lookup);

// Where `rank` of `size` stands among the chosen ranks; kInvalidArgument if they can't be, or it is
// none of them.
Result<int> PositionIn(std::span<const int> chosen, int rank, int size);

}  // namespace horoscale
