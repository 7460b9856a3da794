// The order in which device operations are launched: the rank's side and the coordinator's.

#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "core/launch_order.h"
#include "sim/bindings.h"

namespace horoscale::sim {
namespace py = pybind11;

void BindLaunchOrder(py::module_& module) {
  py::class_<LaunchStamp>(module, "LaunchStamp", "A proposal, or the decision of all members.")
      .def(py::init<uint64_t, uint64_t>(), py::arg("sequence"), py::arg("stamp"))
      .def_readonly("sequence", &LaunchStamp::sequence)
      .def_readonly("stamp", &LaunchStamp::stamp);
  py::class_<LaunchOrder>(module, "LaunchOrder", "The order in which a rank launches operations.")
      .def(py::init<>())
      .def("propose", &LaunchOrder::Propose, py::arg("incarnation"), py::arg("sequence"))
      .def(
          "agree",
          [](LaunchOrder& order, uint32_t incarnation, LaunchStamp decision) {
            RaiseIfError(order.Agree(incarnation, decision));
          },
          py::arg("incarnation"), py::arg("decision"))
      .def("is_next", &LaunchOrder::IsNext, py::arg("incarnation"), py::arg("sequence"))
      .def("remove", &LaunchOrder::Remove, py::arg("incarnation"), py::arg("sequence"))
      .def("remove_set", &LaunchOrder::RemoveSet, py::arg("incarnation"));
  py::class_<StampCollector>(module, "StampCollector", "The largest proposal for each entry.")
      .def(py::init<size_t>(), py::arg("members"))
      .def(
          "add",
          [](StampCollector& collector, uint32_t member, LaunchStamp proposal) {
            return ValueOrRaise(collector.Add(member, proposal));
          },
          py::arg("member"), py::arg("proposal"));
}

}  // namespace horoscale::sim
