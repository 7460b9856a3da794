#include "library.h"

#include <mutex>

#include "operation.h"

namespace horoscale::mxnet {
namespace {

std::shared_mutex runtime_mutex;
hs_runtime* current_runtime = nullptr;
uint64_t current_generation = 0;

// The names that horoscale.mxnet.errors gives MXNet.
const char* ClassOf(hs_code code) {
  switch (code) {
    case HS_INVALID_ARGUMENT:
    case HS_NOT_INITIALIZED:
      return "InvalidArgumentError";
    case HS_MISMATCH:
      return "MismatchError";
    case HS_DUPLICATE_NAME:
      return "DuplicateNameError";
    case HS_UNSUPPORTED:
      return "UnsupportedError";
    case HS_RANK_FAILED:
      return "RankFailedError";
    default:
      return "HorovodInternalError";
  }
}

}  // namespace

Functions functions = {};

CurrentRuntime::CurrentRuntime() : lock_(runtime_mutex) {}

uint64_t CurrentRuntime::generation() const { return current_generation; }

std::string CurrentRuntime::Enqueue(const hs_request& request, uint64_t generation,
                                    hs_handle** out) const {
  if (current_runtime == nullptr || generation != current_generation) {
    return "HorovodInternalError: hvd.shutdown() was called before the operation could begin";
  }
  const hs_code code = hs_enqueue(current_runtime, &request, out);
  return code == HS_OK ? "" : LastError(code);
}

std::string LastError(hs_code code) {
  return std::string(ClassOf(code)) + ": " + hs_error()->message;
}

}  // namespace horoscale::mxnet

void horoscale_mxnet_use(const horoscale::mxnet::Functions* functions) {
  horoscale::mxnet::functions = *functions;
}

void horoscale_mxnet_set_runtime(hs_runtime* runtime) {
  const std::unique_lock lock(horoscale::mxnet::runtime_mutex);
  horoscale::mxnet::current_runtime = runtime;
  if (runtime != nullptr) ++horoscale::mxnet::current_generation;
}

const char* horoscale_mxnet_push(const hs_request* request,
                                 const horoscale::mxnet::NDArrayHandle* inputs,
                                 const horoscale::mxnet::NDArrayHandle* outputs) {
  thread_local std::string error;
  const uint64_t generation = horoscale::mxnet::CurrentRuntime().generation();
  error = horoscale::mxnet::Operation::Push(*request, inputs, outputs, generation);
  return error.empty() ? nullptr : error.c_str();
}
