// The opaque handles of the C ABI, and the guard that makes them inert in a forked child.
#pragma once

#include <memory>

#include "error.h"
#include "horoscale/horoscale.h"
#include "runtime/job.h"
#include "runtime/operation.h"

struct hs_runtime {
  std::unique_ptr<horoscale::Job> job;
  int forks;  // number of forks when the runtime was created
};

struct hs_handle {
  horoscale::OperationPtr operation;
  hs_runtime* runtime;
  bool is_released = false;  // for a view
};

namespace horoscale {

// The number of forks that led to this process: a runtime that was created before a fork belongs to
// the parent.
int ForkCount();

Status CheckAlive(const hs_runtime* runtime);

}  // namespace horoscale
