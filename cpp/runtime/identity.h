// Identity: rank, size and rendezvous of this process, from its caller or its environment.
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
  HostPort rendezvous;  // if size > 1, like the following
  bool serve = false;   // this rank serves the store
  std::string secret;   // empty: none was set, and the store is on loopback (see LocalSecret)
};

// The job's secret, if the caller or the variables SECRET and SECRET_FILE set it. kInvalidArgument
// if it is too weak, or if others can read the file.
Result<std::optional<std::string>> FindSecret(const std::optional<std::string>& given,
                                              const VariableLookup& lookup);

// kInvalidArgument names the variable that is missing or does not parse, and the expected type.
Result<Identity> ReadIdentity(const JobOptions& options, const VariableLookup& lookup);

// The index of `rank` among the chosen ranks; kInvalidArgument if they are invalid or do not
// contain it.
Result<int> PositionIn(std::span<const int> chosen, int rank, int size);

}  // namespace horoscale
