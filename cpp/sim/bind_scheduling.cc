// The components of the coordinator, each on its own.

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fusion_planner.h"
#include "core/name_table.h"
#include "core/negotiator.h"
#include "core/scheduler.h"
#include "core/slot_table.h"
#include "sim/bindings.h"

namespace horoscale::sim {
namespace py = pybind11;
namespace {

void BindFusionPlanner(py::module_& module) {
  py::class_<Part>(module, "Part", "All of a unit, or a range of elements of one of its tensors.")
      .def_readonly("unit", &Part::unit)
      .def_readonly("whole", &Part::whole)
      .def_readonly("tensor", &Part::tensor)
      .def_readonly("begin", &Part::begin)
      .def_readonly("count", &Part::count)
      .def_readonly("bytes", &Part::bytes)
      .def_readonly("is_last", &Part::is_last);
  py::class_<Bucket>(module, "Bucket", "Parts that are executed together.")
      .def_readonly("parts", &Bucket::parts)
      .def_readonly("bytes", &Bucket::bytes);
  py::class_<FusionPlanner>(module, "FusionPlanner", "Selects units to fuse and tensors to split.")
      .def(py::init([](int64_t bucket_bytes, int64_t partition_bytes) {
             return FusionPlanner({bucket_bytes, partition_bytes});
           }),
           py::arg("bucket_bytes"), py::arg("partition_bytes"))
      .def("fits_one_bucket", &FusionPlanner::FitsOneBucket, py::arg("signature"))
      .def("is_cut", &FusionPlanner::IsCut, py::arg("signature"))
      .def("divide", &FusionPlanner::Divide, py::arg("unit"), py::arg("signature"));
}

void BindScheduler(py::module_& module) {
  py::class_<Scheduler>(module, "Scheduler", "Selects the most urgent units within the credit.")
      .def(py::init<FusionPlanner, int64_t, size_t>(), py::arg("planner"), py::arg("credit_bytes"),
           py::arg("entries_ahead") = Scheduler::kEntriesAhead)
      .def(
          "push",
          [](Scheduler& scheduler, UnitId unit, const Signature& signature, int priority) {
            scheduler.Push({unit,
                            std::make_shared<const Signature>(signature),
                            {},
                            priority,
                            0,
                            signature.TotalBytes()});
          },
          py::arg("unit"), py::arg("signature"), py::arg("priority") = 0)
      .def("take", &Scheduler::Take)
      .def("can_take", &Scheduler::CanTake)
      .def("published", &Scheduler::Published, py::arg("sequence"), py::arg("bytes"))
      .def("executed", &Scheduler::Executed, py::arg("sequence"));
}

// A negotiator and the table of its names.
class NamedNegotiator {
 public:
  explicit NamedNegotiator(uint32_t size) : negotiator_(size) {}

  // Returns the unit, and whether it is ready.
  std::pair<UnitId, bool> Report(uint32_t member, const std::string& name,
                                 const Signature& signature) {
    const UnitKey key{names_.Acquire(name), 0};
    const auto outcome = ValueOrRaise(negotiator_.Report({&member, 1}, key, signature, nullptr));
    return {outcome.unit, outcome.is_ready};
  }
  std::vector<UnitId> Join(uint32_t member) { return ValueOrRaise(negotiator_.Join(member)); }
  size_t Variants(UnitId unit) const { return negotiator_.Get(unit).variants.size(); }
  std::vector<uint32_t> Absent(UnitId unit) const { return negotiator_.Absent(unit); }
  void Forget(UnitId unit) { negotiator_.Forget(unit); }

 private:
  NameTable names_;
  Negotiator negotiator_;
};

void BindNegotiator(py::module_& module) {
  py::class_<NamedNegotiator>(module, "Negotiator",
                              "Determines which units are ready on every member.")
      .def(py::init<uint32_t>(), py::arg("size"))
      .def("report", &NamedNegotiator::Report, py::arg("member"), py::arg("name"),
           py::arg("signature"), "The unit, and whether this made it ready.")
      .def("join", &NamedNegotiator::Join, py::arg("member"), "The units that this made ready.")
      .def("variants", &NamedNegotiator::Variants, py::arg("unit"), "1 unless mismatched.")
      .def("absent", &NamedNegotiator::Absent, py::arg("unit"))
      .def("forget", &NamedNegotiator::Forget, py::arg("unit"));
}

// A slot table and the table of its names.
class NamedSlotTable {
 public:
  explicit NamedSlotTable(size_t capacity) : table_(capacity) {}

  // Returns the slot, and those that were retired for it.
  std::pair<std::optional<uint32_t>, std::vector<uint32_t>> Assign(const std::string& name,
                                                                   const Signature& signature,
                                                                   uint64_t sequence) {
    const NameId id = names_.Acquire(name);
    std::vector<uint32_t> retired;
    const auto slot = table_.Assign({id, std::make_shared<const Signature>(signature)}, sequence,
                                    retired, names_);
    names_.Release(id);
    return {slot, retired};
  }
  std::optional<std::string> Meaning(uint32_t slot, uint64_t applied) const {
    const SlotTable::Content* content = table_.Meaning(slot, applied);
    if (content == nullptr) return std::nullopt;
    return std::string(names_.Text(content->name));
  }
  void Touch(uint32_t slot, uint64_t sequence) { table_.Touch(slot, sequence); }
  void Release(uint64_t applied) { table_.Release(applied, names_); }

 private:
  NameTable names_;
  SlotTable table_;
};

void BindSlotTable(py::module_& module) {
  py::class_<NamedSlotTable>(module, "SlotTable", "Assigns slots to names.")
      .def(py::init<size_t>(), py::arg("capacity"))
      .def("assign", &NamedSlotTable::Assign, py::arg("name"), py::arg("signature"),
           py::arg("sequence"), "The slot, if there is one, and those retired for it.")
      .def("meaning", &NamedSlotTable::Meaning, py::arg("slot"), py::arg("applied"))
      .def("touch", &NamedSlotTable::Touch, py::arg("slot"), py::arg("sequence"))
      .def("release", &NamedSlotTable::Release, py::arg("applied"));
}

}  // namespace

void BindScheduling(py::module_& module) {
  BindFusionPlanner(module);
  BindScheduler(module);
  BindNegotiator(module);
  BindSlotTable(module);
}

}  // namespace horoscale::sim
