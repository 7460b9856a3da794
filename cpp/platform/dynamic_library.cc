#include "platform/dynamic_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace horoscale {
namespace {

Status LoaderError(const std::string& name) {
  const char* const why = dlerror();
  return {StatusCode::kSystem, why != nullptr ? why : name + ": unknown loader error"};
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::Open(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) return LoaderError(name);
  return DynamicLibrary(handle);
}

Result<DynamicLibrary> DynamicLibrary::OpenPrivate(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return LoaderError(name);
  return DynamicLibrary(handle);
}

Result<DynamicLibrary> DynamicLibrary::OpenLoaded(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  if (handle == nullptr) {
    return Status(StatusCode::kSystem, path + " is not a library that this process has loaded");
  }
  return DynamicLibrary(handle);
}

void* DynamicLibrary::Find(const char* symbol) const { return dlsym(handle_, symbol); }

std::string DynamicLibrary::FileOf(const void* symbol) {
  Dl_info info;
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

std::vector<std::string> MappedFilesIn(std::string_view maps, std::string_view prefix) {
  std::vector<std::string> paths;
  while (!maps.empty()) {
    const size_t length = std::min(maps.find('\n'), maps.size());
    const std::string_view line = maps.substr(0, length);
    maps.remove_prefix(std::min(length + 1, maps.size()));
    const size_t begin = line.find('/');  // the fields before the path contain no slash
    if (begin == line.npos) continue;
    const std::string_view path = line.substr(begin);
    if (!path.substr(path.rfind('/') + 1).starts_with(prefix)) continue;
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.emplace_back(path);
  }
  return paths;
}

std::vector<std::string> MappedFiles(std::string_view prefix) {
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  return MappedFilesIn(maps, prefix);
}

}  // namespace horoscale
