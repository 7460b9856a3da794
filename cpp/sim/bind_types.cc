// The vocabulary: enumerations, and the exception.

#include <pybind11/native_enum.h>

#include <iterator>

#include "base/status.h"
#include "base/types.h"
#include "core/member.h"
#include "core/messages.h"
#include "sim/bindings.h"

namespace horoscale::sim {
namespace py = pybind11;
namespace {

// Owned by the module.
PyObject* status_error = nullptr;

void Translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const StatusException& exception) {
    py::object error = py::reinterpret_borrow<py::object>(status_error)(exception.what());
    error.attr("code") = py::cast(exception.status().code());
    PyErr_SetObject(status_error, error.ptr());
  }
}

void BindStatus(py::module_& module) {
  py::native_enum<StatusCode>(module, "StatusCode", "enum.Enum", "Why a call was refused.")
      .value("OK", StatusCode::kOk)
      .value("INVALID_ARGUMENT", StatusCode::kInvalidArgument)
      .value("MISMATCH", StatusCode::kMismatch)
      .value("DUPLICATE_NAME", StatusCode::kDuplicateName)
      .value("PROTOCOL", StatusCode::kProtocol)
      .value("JOINED", StatusCode::kJoined)
      .finalize();
  status_error = PyErr_NewExceptionWithDoc("horoscale.sim.StatusError",
                                           "A failed Status of the core; `code` is its StatusCode.",
                                           PyExc_RuntimeError, nullptr);
  module.add_object("StatusError", py::reinterpret_borrow<py::object>(status_error));
  py::register_local_exception_translator(&Translate);
}

}  // namespace

void BindTypes(py::module_& module) {
  BindStatus(module);
  py::native_enum<DataType> dtype(module, "DataType", "enum.Enum",
                                  "The type of a tensor's elements.");
  const char* const dtypes[] = {"UINT8", "INT8",      "UINT16",    "INT16",   "INT32",
                                "INT64", "FLOAT16",   "BFLOAT16",  "FLOAT32", "FLOAT64",
                                "BOOL",  "COMPLEX64", "COMPLEX128"};
  static_assert(std::size(dtypes) == kNumDataTypes);
  for (int i = 0; i < kNumDataTypes; ++i) dtype.value(dtypes[i], static_cast<DataType>(i));
  dtype.finalize();
  py::native_enum<ReduceOp> reduce_op(module, "ReduceOp", "enum.Enum",
                                      "The operator of a reduction.");
  const char* const ops[] = {"AVERAGE", "SUM",         "ADASUM",     "MIN",        "MAX",
                             "PRODUCT", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR"};
  static_assert(std::size(ops) == kNumReduceOps);
  for (int i = 0; i < kNumReduceOps; ++i) reduce_op.value(ops[i], static_cast<ReduceOp>(i));
  reduce_op.finalize();
  py::native_enum<OpKind> kind(module, "OpKind", "enum.Enum", "The kind of an operation.");
  const char* const kinds[] = {"ALLREDUCE",          "ALLGATHER", "BROADCAST", "ALLTOALL",
                               "REDUCESCATTER",      "BARRIER",   "JOIN",      "ADD_PROCESS_SET",
                               "REMOVE_PROCESS_SET", "REDUCE",    "GATHER",    "SCATTER"};
  static_assert(std::size(kinds) == kNumOpKinds);
  for (int i = 0; i < kNumOpKinds; ++i) kind.value(kinds[i], static_cast<OpKind>(i));
  kind.finalize();
  py::native_enum<PlanEntry::Type>(module, "EntryType", "enum.Enum", "The type of a plan entry.")
      .value("EXECUTE", PlanEntry::Type::kExecute)
      .value("FAIL", PlanEntry::Type::kFail)
      .value("ALL_JOINED", PlanEntry::Type::kAllJoined)
      .finalize();
  py::native_enum<Action::Type>(module, "ActionType", "enum.Enum", "The type of a member's action.")
      .value("EXECUTE", Action::Type::kExecute)
      .value("FAIL", Action::Type::kFail)
      .value("ALL_JOINED", Action::Type::kAllJoined)
      .finalize();
}

}  // namespace horoscale::sim
