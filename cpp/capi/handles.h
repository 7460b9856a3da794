// What the opaque handles of the C ABI are, and the guard that makes them inert in a forked child.
#pragma once

#include <memory>

#include "error.h"
#include "horoscale/horoscale.h"
#include "runtime/job.h"
#include "runtime/operation.h"

struct hs_runtime {
  std::unique_ptr<horoscale::Job> job;
  int forks;  // of this process' ancestors when it was made
};

struct hs_handle {
  horoscale::OperationPtr operation;
  hs_runtime* runtime;
  bool is_released = false;  // of a view
};

namespace horoscale {

// How often this process image was forked: a runtime that was made before belongs to the parent.
int ForkCount();

Status CheckAlive(const hs_runtime* runtime);

}  // namespace horoscale
