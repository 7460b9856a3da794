// DynamicLibrary: a shared library that is opened at run time, and the functions in it.
//
// Never closed: the libraries that are opened so start threads and register exit handlers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horoscale {

class DynamicLibrary {
 public:
  // Opens a library by path or by name; plug-ins that it opens itself see its symbols. kSystem with
  // the loader's words.
  static Result<DynamicLibrary> Open(const std::string& name);

  // The same, but nobody else sees its symbols.
  static Result<DynamicLibrary> OpenPrivate(const std::string& name);

  // Opens it only if the process has it already, and lets everything that is loaded later see its
  // symbols, whatever the one who loaded it had asked for.
  static Result<DynamicLibrary> OpenLoaded(const std::string& path);

  // Null if it has no such symbol.
  void* Find(const char* symbol) const;

  template <typename Function>
  Function* FindFunction(const char* symbol) const {
    return reinterpret_cast<Function*>(Find(symbol));
  }

  // The file that the symbol comes from.
  static std::string FileOf(const void* symbol);

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  void* handle_;
};

// Paths of the files mapped into this process whose file name begins with `prefix`, each once, in
// the order of their addresses. Empty where /proc is hidden.
std::vector<std::string> MappedFiles(std::string_view prefix);

// The same, in the text of a /proc/<pid>/maps.
std::vector<std::string> MappedFilesIn(std::string_view maps, std::string_view prefix);

}  // namespace horoscale
