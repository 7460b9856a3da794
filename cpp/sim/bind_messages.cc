// Requests, reports and plan entries as values, and their bytes.

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/codec.h"
#include "core/messages.h"
#include "core/mismatch.h"
#include "sim/bindings.h"

namespace horoscale::sim {
namespace py = pybind11;
namespace {

std::span<const std::byte> View(const py::bytes& bytes) {
  const std::string_view text = bytes;
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Encoding EncodingOf(int code) {
  const auto encoding = Encoding::FromCode(code);
  if (!encoding) throw py::value_error("no encoding has the code " + std::to_string(code));
  return *encoding;
}

std::string Describe(const Signature& signature) {
  std::string text(Name(signature.kind));
  for (const TensorSpec& tensor : signature.tensors) text += " " + FormatTensor(tensor);
  if (signature.root >= 0) text += " from " + std::to_string(signature.root);
  return text;
}

template <typename Message>
py::bytes ToBytes(const Message& message) {
  const std::vector<std::byte> bytes = Encode(message);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void BindRequest(py::module_& module) {
  py::class_<TensorSpec>(module, "TensorSpec", "Type and shape of a tensor; -1 first: free.")
      .def(py::init([](std::vector<int64_t> shape, DataType dtype) {
             return TensorSpec{dtype, std::move(shape)};
           }),
           py::arg("shape"), py::arg("dtype") = DataType::kFloat32)
      .def_readonly("shape", &TensorSpec::shape)
      .def_readonly("dtype", &TensorSpec::dtype)
      .def(py::self == py::self)
      .def("__repr__", &FormatTensor)
      .def("num_elements", &TensorSpec::NumElements, "A free dimension counts as 1.");
  py::class_<Terms>(module, "Terms", "The common properties of the units of one bucket.")
      .def_readonly("kind", &Terms::kind)
      .def_readonly("reduce_op", &Terms::reduce_op)
      .def_readonly("root", &Terms::root)
      .def_readonly("ranks", &Terms::ranks)
      .def_readonly("target_set", &Terms::target_set)
      .def_readonly("splits", &Terms::splits);
  py::class_<Signature, Terms>(module, "Signature", "All that the members of a set must agree on.")
      .def(py::init([](OpKind kind, std::vector<TensorSpec> tensors, ReduceOp reduce_op, int root,
                       double prescale, double postscale, int encoding, std::vector<int> ranks,
                       int target_set, std::vector<int64_t> splits) {
             return Signature{{.kind = kind,
                               .reduce_op = reduce_op,
                               .root = root,
                               .prescale = prescale,
                               .postscale = postscale,
                               .encoding = EncodingOf(encoding),
                               .ranks = std::move(ranks),
                               .target_set = target_set,
                               .splits = std::move(splits)},
                              std::move(tensors)};
           }),
           py::arg("kind") = OpKind::kAllreduce, py::arg("tensors") = std::vector<TensorSpec>{},
           py::kw_only(), py::arg("reduce_op") = ReduceOp::kSum, py::arg("root") = -1,
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("encoding") = 0,
           py::arg("ranks") = std::vector<int>{}, py::arg("target_set") = -1,
           py::arg("splits") = std::vector<int64_t>{})
      .def_readonly("tensors", &Signature::tensors)
      .def(py::self == py::self)
      .def("__repr__", &Describe)
      .def("total_bytes", &Signature::TotalBytes);
  py::class_<Request>(module, "Request", "A request of one rank: one tensor, or a group.")
      .def(py::init([](Signature signature, std::string name, int priority) {
             return Request{.name = std::move(name),
                            .index = 0,
                            .priority = priority,
                            .signature = std::move(signature)};
           }),
           py::arg("signature"), py::arg("name") = "", py::arg("priority") = 0)
      .def_readonly("name", &Request::name)
      .def_readonly("index", &Request::index)
      .def_readonly("priority", &Request::priority)
      .def_readonly("signature", &Request::signature)
      .def(py::self == py::self)
      .def("__repr__",
           [](const Request& request) {
             return request.DisplayName() + ": " + Describe(request.signature) + " priority " +
                    std::to_string(request.priority);
           })
      .def("display_name", &Request::DisplayName);
}

void BindReport(py::module_& module) {
  py::class_<UnnamedHit>(module, "UnnamedHit", "An unnamed operation that hits the cache.")
      .def(py::init<uint32_t, uint64_t>(), py::arg("slot"), py::arg("index"))
      .def_readonly("slot", &UnnamedHit::slot)
      .def_readonly("index", &UnnamedHit::index);
  py::class_<Report>(module, "Report",
                     "Member to coordinator: units that are ready on this member.")
      .def(py::init<>())
      .def_readwrite("applied_sequence", &Report::applied_sequence)
      .def_readwrite("hits", &Report::hits)
      .def_readwrite("unnamed_hits", &Report::unnamed_hits)
      .def_readwrite("hit_priorities", &Report::hit_priorities)
      .def_readwrite("requests", &Report::requests)
      .def_readwrite("join", &Report::join)
      .def(py::self == py::self)
      .def("encode", &ToBytes<Report>)
      .def_static(
          "decode", [](const py::bytes& bytes) { return ValueOrRaise(DecodeReport(View(bytes))); },
          py::arg("bytes"));
}

void BindGroupReport(py::module_& module) {
  py::class_<JointReport>(module, "JointReport", "An equal report of several members.")
      .def(py::init<std::vector<uint32_t>, Report>(), py::arg("members"), py::arg("report"))
      .def_readonly("members", &JointReport::members)
      .def_readonly("report", &JointReport::report);
  py::class_<GroupReport>(module, "GroupReport", "The reports of members of a group.")
      .def(py::init<std::vector<JointReport>>(), py::arg("parts"))
      .def_readonly("parts", &GroupReport::parts)
      .def(py::self == py::self)
      .def("encode", &ToBytes<GroupReport>)
      .def_static(
          "decode",
          [](const py::bytes& bytes) { return ValueOrRaise(DecodeGroupReport(View(bytes))); },
          py::arg("bytes"));
}

void BindPlanEntry(py::module_& module) {
  py::class_<PlanItem>(module, "PlanItem", "One unit, or a part of one, of a plan entry.")
      .def_readonly("slot", &PlanItem::slot)
      .def_readonly("request", &PlanItem::request)
      .def_readonly("index", &PlanItem::index)
      .def_readonly("whole", &PlanItem::whole)
      .def_readonly("tensor", &PlanItem::tensor)
      .def_readonly("begin", &PlanItem::begin)
      .def_readonly("count", &PlanItem::count);
  py::class_<PlanEntry>(module, "PlanEntry", "Coordinator to members: the next units to execute.")
      .def_readonly("sequence", &PlanEntry::sequence)
      .def_readonly("type", &PlanEntry::type)
      .def_readonly("retired_slots", &PlanEntry::retired_slots)
      .def_readonly("absent", &PlanEntry::absent)
      .def_readonly("divisor", &PlanEntry::divisor)
      .def_readonly("items", &PlanEntry::items)
      .def_readonly("failure_message", &PlanEntry::failure_message)
      .def_readonly("last_joined", &PlanEntry::last_joined)
      .def(py::self == py::self)
      .def("encode", &ToBytes<PlanEntry>)
      .def_static(
          "decode",
          [](const py::bytes& bytes) { return ValueOrRaise(DecodePlanEntry(View(bytes))); },
          py::arg("bytes"));
}

}  // namespace

void BindMessages(py::module_& module) {
  BindRequest(module);
  BindReport(module);
  BindGroupReport(module);
  BindPlanEntry(module);
}

}  // namespace horoscale::sim
