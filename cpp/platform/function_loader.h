// FunctionLoader: fills in a table of a library's functions and records the first missing one.
#pragma once

#include "platform/dynamic_library.h"

namespace horoscale {

class FunctionLoader {
 public:
  explicit FunctionLoader(const DynamicLibrary& library) : library_(library) {}

  template <typename Function>
  FunctionLoader& Load(const char* symbol, Function*& function) {
    function = library_.FindFunction<Function>(symbol);
    if (function == nullptr && missing_ == nullptr) missing_ = symbol;
    return *this;
  }

  const char* missing() const { return missing_; }  // null: nothing

 private:
  const DynamicLibrary& library_;
  const char* missing_ = nullptr;
};

}  // namespace horoscale
