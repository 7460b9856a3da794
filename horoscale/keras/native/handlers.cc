// The functions that XLA calls: the allreduce of a step's gradients, and a test of the interface.
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "call.h"

namespace horoscale::xla {
namespace {

// XLA calls a handler without arguments to learn what it is. Returns true if this is such a call.
bool AnswerWhoWeAre(const CallFrame* frame) {
  for (Extension* one = frame->head.extensions; one != nullptr; one = one->next) {
    if (one->type != kIsMetadata) continue;
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(one)->metadata;
    metadata->version.major = kMajorVersion;
    metadata->version.minor = kMinorVersion;
    metadata->traits = 0;
    return true;
  }
  return false;
}

// Null if this is a frame that we know how to read, of an XLA that knows futures.
Error* Check(const CallFrame* frame) {
  const Api* api = frame->api;
  // The size of a frame does not count its future, and before JAX 0.6 that of the functions was
  // wrong.
  if (frame->head.struct_size < offsetof(CallFrame, future) ||
      api->head.struct_size < sizeof(Api)) {
    return MakeError(api, kUnimplemented, "horoscale needs JAX 0.6 or newer to be called by XLA");
  }
  if (frame->stage != kExecute || frame->arguments.size != frame->results.size) {
    return MakeError(api, kInternal, "horoscale was called in another way than it asked for");
  }
  return nullptr;
}

// The value of an attribute, null if there is none of this name and type.
const void* Find(const Attributes& attributes, std::string_view name, AttributeType type) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const Text& own = *attributes.names[i];
    if (std::string_view(own.begin, own.size) != name || attributes.types[i] != type) continue;
    return attributes.values[i];
  }
  return nullptr;
}

template <typename T>
bool Read(const Attributes& attributes, std::string_view name, DataType dtype, T* out) {
  const auto* scalar = static_cast<const Scalar*>(Find(attributes, name, kScalar));
  if (scalar == nullptr || scalar->dtype != dtype) return false;
  std::memcpy(out, scalar->value, sizeof(T));
  return true;
}

std::optional<std::span<const int64_t>> ReadNumbers(const Attributes& attributes,
                                                    std::string_view name) {
  const auto* array = static_cast<const Array*>(Find(attributes, name, kArray));
  if (array == nullptr || array->dtype != kS64) return {};
  return std::span(static_cast<const int64_t*>(array->data), array->size);
}

// Sizes and encodings of the groups are arrays; each name ends with a line feed.
bool ReadGroups(const Attributes& attributes, int64_t tensors, std::vector<Group>* out) {
  const auto sizes = ReadNumbers(attributes, "groups");
  const auto encodings = ReadNumbers(attributes, "encodings");
  const auto* text = static_cast<const Text*>(Find(attributes, "names", kString));
  if (!sizes || !encodings || sizes->size() != encodings->size() || text == nullptr) return false;
  std::string_view names(text->begin, text->size);
  for (size_t i = 0; i < sizes->size(); ++i) {
    const int64_t size = (*sizes)[i];
    const size_t end = names.find('\n');
    if (size < 1 || size > tensors || end == std::string_view::npos) return false;
    tensors -= size;
    out->push_back({static_cast<size_t>(size), (*encodings)[i], std::string(names.substr(0, end))});
    names.remove_prefix(end + 1);
  }
  return tensors == 0 && names.empty();
}

bool ReadAll(const CallFrame* frame, Settings* out) {
  const Attributes& given = frame->attributes;
  return Read(given, "process_set", kS64, &out->process_set) &&
         Read(given, "reduce_op", kS64, &out->reduce_op) &&
         Read(given, "prescale_factor", kF64, &out->prescale) &&
         Read(given, "postscale_factor", kF64, &out->postscale) &&
         ReadGroups(given, frame->arguments.size, &out->groups);
}

bool AreAlike(const Buffer& one, const Buffer& other) {
  if (one.dtype != other.dtype || one.rank != other.rank) return false;
  const auto bytes = static_cast<size_t>(one.rank) * sizeof(int64_t);
  return bytes == 0 || std::memcmp(one.dims, other.dims, bytes) == 0;
}

}  // namespace
}  // namespace horoscale::xla

using namespace horoscale::xla;  // NOLINT: what follows has C's linkage

// Reduces its arguments over the ranks; attributes: see Settings.
extern "C" __attribute__((visibility("default"))) Error* horoscale_xla_allreduce(CallFrame* frame) {
  if (AnswerWhoWeAre(frame)) return nullptr;
  if (Error* error = Check(frame)) return error;
  for (int64_t i = 0; i < frame->arguments.size; ++i) {
    if (!AreAlike(*frame->arguments.buffers[i], *frame->results.buffers[i])) {
      return MakeError(frame->api, kInternal, "a result of an allreduce is unlike its argument");
    }
  }
  Settings settings;
  if (!ReadAll(frame, &settings)) {
    return MakeError(frame->api, kInternal, "an attribute of horoscale's allreduce is missing");
  }
  return Call::Start(frame, std::move(settings));
}

// Copies its one argument, an int32 scalar, to its result: from another thread, and late, so that
// it shows whether XLA waits. With the attribute failure=1 it then fails.
extern "C" __attribute__((visibility("default"))) Error* horoscale_xla_self_test(CallFrame* frame) {
  if (AnswerWhoWeAre(frame)) return nullptr;
  if (Error* error = Check(frame)) return error;
  Completion completion(frame->api);
  if (Error* error = completion.Begin(frame)) return error;
  const void* in = frame->arguments.buffers[0]->data;
  void* out = frame->results.buffers[0]->data;
  int64_t failure = 0;
  Read(frame->attributes, "failure", kS64, &failure);
  std::thread([completion, in, out, failure]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::memcpy(out, in, sizeof(int32_t));
    if (failure == 0) {
      completion.Succeed();
    } else {
      completion.Fail(kFailedPrecondition, "as asked for");
    }
  }).detach();
  return nullptr;
}
