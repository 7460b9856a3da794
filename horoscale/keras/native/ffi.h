// What the handlers use of XLA's foreign function interface, declared here so that they build
// without XLA.
//
// The interface is xla/ffi/api/c_api.h, whose structs grow at their ends only within a major
// version; each begins with the size that its maker knows. XLA asks a handler which version it is
// for before it calls it, and refuses one that it does not serve.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horoscale::xla {

// The first version with futures.
inline constexpr int kMajorVersion = 0;
inline constexpr int kMinorVersion = 1;

enum ErrorCode : int32_t {
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
};

enum DataType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
};

enum AttributeType : int32_t { kArray = 1, kScalar = 3, kString = 4 };
enum Stage : int32_t { kExecute = 3 };

inline constexpr int32_t kIsMetadata = 1;  // an extension of a frame

struct Error;
struct Future;
struct ExecutionContext;

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

// The head of every struct that may grow.
struct Sized {
  size_t struct_size;
  Extension* extensions;
};

struct Version {
  Sized head;
  int major;
  int minor;
};

struct Metadata {
  size_t struct_size;
  Version version;  // out
  uint32_t traits;  // out
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  Sized head;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Text {
  const char* begin;
  size_t size;
};

struct Scalar {
  DataType dtype;
  const void* value;
};

struct Array {
  DataType dtype;
  size_t size;
  const void* data;
};

struct Buffers {
  Sized head;
  int64_t size;
  int32_t* types;
  Buffer** buffers;
};

struct Attributes {
  Sized head;
  int64_t size;
  AttributeType* types;
  Text** names;
  void** values;
};

struct CreateErrorArguments {
  Sized head;
  const char* message;
  ErrorCode code;
};

struct FutureArguments {
  Sized head;
  Future* future;
};

struct DestroyErrorArguments {
  Sized head;
  Error* error;
};

struct SetErrorArguments {
  Sized head;
  Future* future;
  Error* error;  // which XLA then owns
};

using Function = void();  // one that is not used here

struct Api {
  Sized head;
  Version version;
  const void* internal;
  Error* (*create_error)(CreateErrorArguments*);
  Function* get_message;
  void (*destroy_error)(DestroyErrorArguments*);
  Function* unused[10];
  Error* (*create_future)(FutureArguments*);
  Error* (*set_available)(FutureArguments*);
  Error* (*set_error)(SetErrorArguments*);
};

struct CallFrame {
  Sized head;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // out
};

}  // namespace horoscale::xla
