// The parts of the module horoscale.sim._sim, one function each, and the conversion of a failed
// Status to a Python exception.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace horoscale::sim {

void BindTypes(pybind11::module_& module);
void BindMessages(pybind11::module_& module);
void BindControlPlane(pybind11::module_& module);
void BindScheduling(pybind11::module_& module);
void BindLaunchOrder(pybind11::module_& module);
void BindSimulation(pybind11::module_& module);

// Carries a Status through pybind11; becomes horoscale.sim.StatusError.
class StatusException : public std::exception {
 public:
  explicit StatusException(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void RaiseIfError(Status status) {
  if (!status.ok()) throw StatusException(std::move(status));
}

template <typename T>
T ValueOrRaise(Result<T> result) {
  RaiseIfError(result.status());
  return result.TakeValue();
}

}  // namespace horoscale::sim
