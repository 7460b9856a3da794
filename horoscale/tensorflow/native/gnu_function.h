// GnuFunction: a std::function<void()> of GNU's C++ library, by its layout in memory.
//
// TensorFlow's wheels are compiled with that library and pass such a function across the C API.
// Written down here, it can be called by a kernel that is built with another C++ library, as the
// one in our wheels is.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace horoscale::tensorflow {

class GnuFunction {
 public:
  // Moves out what the function at `source` holds, and leaves it empty.
  explicit GnuFunction(void* source) {
    std::memcpy(&layout_, source, sizeof(Layout));
    std::memcpy(source, &kEmpty, sizeof(Layout));
  }
  ~GnuFunction() {
    if (layout_.manage != nullptr) layout_.manage(layout_.target, layout_.target, kDestroy);
  }
  GnuFunction(const GnuFunction&) = delete;
  GnuFunction& operator=(const GnuFunction&) = delete;

  void operator()() const { layout_.call(layout_.target); }

 private:
  enum Operation : unsigned { kDestroy = 3 };

  // `target` is what is called, if it is small and may be moved byte by byte, or a pointer to it.
  struct Layout {
    alignas(void*) std::byte target[2 * sizeof(void*)];
    bool (*manage)(void* target, const void* source, Operation operation);
    void (*call)(const void* target);
  };
  static_assert(sizeof(Layout) == 4 * sizeof(void*));
  static constexpr Layout kEmpty = {};

  Layout layout_;
};

}  // namespace horoscale::tensorflow
