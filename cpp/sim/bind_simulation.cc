// The simulation of large jobs.

#include "sim/bindings.h"
#include "sim/job_simulation.h"

namespace horoscale::sim {
namespace py = pybind11;

void BindSimulation(py::module_& module) {
  py::class_<JobModel>(module, "JobModel", "A job and the links between its ranks; in seconds.")
      .def(py::init<>())
      .def_readwrite("ranks", &JobModel::ranks)
      .def_readwrite("tensors", &JobModel::tensors)
      .def_readwrite("tensor_bytes", &JobModel::tensor_bytes)
      .def_readwrite("link_seconds", &JobModel::link_seconds)
      .def_readwrite("message_seconds", &JobModel::message_seconds)
      .def_readwrite("bytes_per_second", &JobModel::bytes_per_second)
      .def_readwrite("ranks_per_host", &JobModel::ranks_per_host)
      .def_readwrite("fan_out", &JobModel::fan_out)
      .def_readwrite("local_link_seconds", &JobModel::local_link_seconds)
      .def_readwrite("local_message_seconds", &JobModel::local_message_seconds)
      .def_readwrite("patience_seconds", &JobModel::patience_seconds)
      .def_readwrite("jitter_seconds", &JobModel::jitter_seconds)
      .def_readwrite("seed", &JobModel::seed)
      .def_readwrite("measure", &JobModel::measure)
      .def_readwrite("own_members", &JobModel::own_members);
  py::class_<StepCost>(module, "StepCost", "What one step costs the control plane.")
      .def_readonly("seconds", &StepCost::seconds)
      .def_readonly("messages", &StepCost::messages)
      .def_readonly("local_messages", &StepCost::local_messages)
      .def_readonly("bytes", &StepCost::bytes)
      .def_readonly("entries", &StepCost::entries)
      .def_readonly("coordinator_messages", &StepCost::coordinator_messages)
      .def_readonly("coordinator_core_seconds", &StepCost::coordinator_core_seconds)
      .def_readonly("member_core_seconds", &StepCost::member_core_seconds);
  py::class_<JobSimulation>(module, "JobSimulation", "The control plane of a large job.")
      .def(py::init<const JobModel&>(), py::arg("model"))
      .def(
          "step", [](JobSimulation& job) { return ValueOrRaise(job.Step()); },
          "The next step; the first one is cold.");
}

}  // namespace horoscale::sim
