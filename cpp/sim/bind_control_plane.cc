// The two halves of a process set: Member and Coordinator.

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "core/aggregator.h"
#include "core/coordinator.h"
#include "core/member.h"
#include "sim/bindings.h"

namespace horoscale::sim {
namespace py = pybind11;
namespace {

void BindAction(py::module_& module) {
  py::class_<Piece>(module, "Piece", "A contiguous run of one tensor of one submission.")
      .def_readonly("token", &Piece::token)
      .def_readonly("tensor", &Piece::tensor)
      .def_readonly("begin", &Piece::begin)
      .def_readonly("count", &Piece::count);
  py::class_<Action>(module, "Action", "The action of a member for a plan entry.")
      .def_readonly("type", &Action::type)
      .def_readonly("sequence", &Action::sequence)
      .def_readonly("common", &Action::common)
      .def_readonly("dtype", &Action::dtype)
      .def_readonly("pieces", &Action::pieces)
      .def_readonly("absent", &Action::absent)
      .def_readonly("divisor", &Action::divisor)
      .def_readonly("display_name", &Action::display_name)
      .def_readonly("finished", &Action::finished)
      .def_property_readonly("failure_code",
                             [](const Action& action) { return action.failure.code(); })
      .def_property_readonly("failure_message",
                             [](const Action& action) { return action.failure.message(); })
      .def_readonly("last_joined", &Action::last_joined);
}

void BindMember(py::module_& module) {
  py::class_<Member>(module, "Member", "One rank's view of one process set.")
      .def(py::init<int, uint32_t, uint32_t, size_t>(), py::arg("process_set_id"),
           py::arg("member"), py::arg("size"), py::arg("cache_capacity") = 1024)
      .def(
          "submit",
          [](Member& member, Request request, Token token) {
            RaiseIfError(member.Submit(std::move(request), token));
          },
          py::arg("request"), py::arg("token"))
      .def("take_report", &Member::TakeReport)
      .def(
          "apply",
          [](Member& member, const PlanEntry& entry) { return ValueOrRaise(member.Apply(entry)); },
          py::arg("entry"))
      .def("abandon", &Member::Abandon)
      .def("has_pending", &Member::HasPending)
      .def("pending", &Member::Pending)
      .def_property_readonly("cache_size",
                             [](const Member& member) { return member.cache().size(); })
      .def_property_readonly("applied_sequence", &Member::applied_sequence);
}

void BindAggregator(py::module_& module) {
  py::class_<Aggregator>(module, "Aggregator", "Combines the reports of a group of members.")
      .def(py::init<std::vector<uint32_t>, double>(), py::arg("members"),
           py::arg("patience_seconds"))
      .def(
          "on_report",
          [](Aggregator& aggregator, const GroupReport& report, double now) {
            RaiseIfError(aggregator.OnReport(report, now));
          },
          py::arg("report"), py::arg("now"))
      .def("take_report", &Aggregator::TakeReport, py::arg("now"))
      .def("deadline", &Aggregator::Deadline);
}

void BindCoordinator(py::module_& module) {
  py::class_<StallReport>(module, "StallReport", "An operation that members have not called yet.")
      .def_readonly("display_name", &StallReport::display_name)
      .def_readonly("kind", &StallReport::kind)
      .def_readonly("missing_ranks", &StallReport::missing_ranks)
      .def_readonly("ready_ranks", &StallReport::ready_ranks)
      .def_readonly("seconds_waiting", &StallReport::seconds_waiting);
  py::class_<CoordinatorOptions>(module, "CoordinatorOptions", "The options of a coordinator.")
      .def(py::init<>())
      .def_readwrite("process_set_id", &CoordinatorOptions::process_set_id)
      .def_readwrite("ranks", &CoordinatorOptions::ranks)
      .def_readwrite("cache_capacity", &CoordinatorOptions::cache_capacity)
      .def_property(
          "fusion_threshold_bytes",
          [](const CoordinatorOptions& o) { return o.limits.fusion_threshold_bytes; },
          [](CoordinatorOptions& o, int64_t bytes) { o.limits.fusion_threshold_bytes = bytes; })
      .def_property(
          "partition_bytes", [](const CoordinatorOptions& o) { return o.limits.partition_bytes; },
          [](CoordinatorOptions& o, int64_t bytes) { o.limits.partition_bytes = bytes; })
      .def_property(
          "credit_bytes", [](const CoordinatorOptions& o) { return o.limits.credit_bytes; },
          [](CoordinatorOptions& o, int64_t bytes) { o.limits.credit_bytes = bytes; })
      .def_readwrite("priority_scheduling", &CoordinatorOptions::priority_scheduling)
      .def_readwrite("stall_warning_seconds", &CoordinatorOptions::stall_warning_seconds)
      .def_readwrite("goes_on_without_joined", &CoordinatorOptions::goes_on_without_joined)
      .def_readwrite("average_over_participants", &CoordinatorOptions::average_over_participants);
  py::class_<Coordinator>(module, "Coordinator", "Turns reports into plan entries.")
      .def(py::init<CoordinatorOptions>(), py::arg("options"))
      .def(
          "on_report",
          [](Coordinator& coordinator, uint32_t member, const Report& report, double now) {
            RaiseIfError(coordinator.OnReport(member, report, now));
          },
          py::arg("member"), py::arg("report"), py::arg("now") = 0.0)
      .def(
          "on_group_report",
          [](Coordinator& coordinator, const GroupReport& report, double now) {
            RaiseIfError(coordinator.OnReport(report, now));
          },
          py::arg("report"), py::arg("now") = 0.0)
      .def("take_plan", &Coordinator::TakePlan, py::arg("now") = 0.0)
      .def("on_executed", &Coordinator::OnExecuted, py::arg("sequence"))
      .def("has_work", &Coordinator::HasWork)
      .def("take_stall_reports", &Coordinator::TakeStallReports, py::arg("now"));
}

}  // namespace

void BindControlPlane(py::module_& module) {
  BindAction(module);
  BindMember(module);
  BindAggregator(module);
  BindCoordinator(module);
}

}  // namespace horoscale::sim
