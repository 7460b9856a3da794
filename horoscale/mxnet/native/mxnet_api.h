// What this library uses of MXNet 1.9, written down here: nothing is compiled against MXNet.
#pragma once

#include <cstdint>

namespace horoscale::mxnet {

using NDArrayHandle = void*;

// What arrays have in common that share memory, and the engine's variable with it: the chunk, which
// is the first thing in an mxnet::NDArray.
inline const void* ChunkOf(NDArrayHandle array) { return *static_cast<void* const*>(array); }

// mxnet::Context.
struct Context {
  int32_t device_type;
  int32_t device_id;
};
constexpr Context kHost = {1, 0};

// mxnet::FnProperty::kCPUPrioritized: run by a few threads of their own, by priority.
constexpr int32_t kPrioritized = 3;

// mxnet::engine::CallbackOnComplete. `error` is a std::runtime_error of GNU's C++ library, or null.
struct OnComplete {
  void (*function)(void* engine, void* parameter, const void* error);
  void* engine;
  void* parameter;
};

// MXNet's functions, in the order in which horoscale.mxnet.engine gives them.
struct Functions {
  // The first three return 0, or -1 after a failure that last_error() describes.
  int (*push_async)(void (*function)(void* context, void* on_complete, void* parameter),
                    void* parameter, void (*deleter)(void* parameter), const Context* context,
                    NDArrayHandle* read, int num_read, NDArrayHandle* written, int num_written,
                    const int32_t* property, int priority, const char* name, bool is_wait);
  int (*get_data)(NDArrayHandle array, void** data);
  int (*shallow_copy)(NDArrayHandle array, NDArrayHandle* copy);
  int (*free_array)(NDArrayHandle array);
  const char* (*last_error)();
  // NDArray::Reorder2DefaultAsync(): enqueues that an array gets the layout of C. May be null.
  void (*reorder)(NDArrayHandle array);
  // The constructor and the destructor of std::runtime_error in GNU's C++ library.
  void (*make_error)(void* memory, const char* message);
  void (*destroy_error)(void* memory);
  // Not 0: the engine is MXNet's NaiveEngine, in which a push returns when the operation is done,
  // and which loses its error.
  int64_t is_naive;
};

}  // namespace horoscale::mxnet
