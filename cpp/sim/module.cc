// The module horoscale.sim._sim: the classes of core/ as Python objects, for simulation and
// property tests. It holds no logic: what Python sees is what the runtime runs.

#include "sim/bindings.h"

namespace py = pybind11;

PYBIND11_MODULE(_sim, module) {
  module.doc() = "The control plane of the runtime: the classes of cpp/core/, without any I/O.";
  horoscale::sim::BindTypes(module);
  horoscale::sim::BindMessages(module);
  horoscale::sim::BindScheduling(module);
  horoscale::sim::BindControlPlane(module);
  horoscale::sim::BindLaunchOrder(module);
  horoscale::sim::BindSimulation(module);
}
