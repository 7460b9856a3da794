// DynamicLibrary: a shared library that is loaded at run time, and its functions.
//
// Libraries are never unloaded, because they start threads and register exit handlers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horoscale {

class DynamicLibrary {
 public:
  // Loads a library by path or name, with global symbols, which its plug-ins need. kSystem with the
  // loader's error.
  static Result<DynamicLibrary> Open(const std::string& name);

  // The same with local symbols.
  static Result<DynamicLibrary> OpenPrivate(const std::string& name);

  // Opens a library only if the process has already loaded it, and makes its symbols global, even
  // if they were loaded as local.
  static Result<DynamicLibrary> OpenLoaded(const std::string& path);

  // Null if the library has no such symbol.
  void* Find(const char* symbol) const;

  template <typename Function>
  Function* FindFunction(const char* symbol) const {
    return reinterpret_cast<Function*>(Find(symbol));
  }

  // The file that defines the symbol.
  static std::string FileOf(const void* symbol);

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

// Paths of the files mapped into this process whose names begin with `prefix`, without duplicates,
// in address order. Empty if /proc is not accessible.
std::vector<std::string> MappedFiles(std::string_view prefix);

// The same, from the content of a /proc/<pid>/maps.
std::vector<std::string> MappedFilesIn(std::string_view maps, std::string_view prefix);

}  // namespace horoscale
