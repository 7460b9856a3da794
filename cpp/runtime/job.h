// Job: how a process becomes a rank. Finds out who it is, meets the others, and starts the runtime.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "rendezvous/store.h"
#include "runtime/runtime.h"

namespace horoscale {

// What the caller says of itself; what it leaves out comes from the environment (RANK, SIZE,
// RENDEZVOUS, RENDEZVOUS_SERVED, SECRET, SECRET_FILE), and with nothing at all it is rank 0 of 1.
struct JobOptions {
  std::optional<int> rank;
  std::optional<int> size;
  std::optional<std::string> rendezvous;
  std::optional<bool> served;
  std::optional<std::string> secret;
  int generation = 0;  // of init calls in these processes: keeps their keys apart
};

class Job {
 public:
  // Returns when all ranks have come, or with what is wrong after START_TIMEOUT at the latest.
  static Result<std::unique_ptr<Job>> Join(const JobOptions& options);

  Runtime& runtime() { return *runtime_; }

 private:
  Job() = default;

  std::unique_ptr<Store> store_;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace horoscale
