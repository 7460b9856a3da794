#include "backends/nccl/nccl_library.h"

#include <mutex>
#include <utility>
#include <vector>

#include "platform/dynamic_library.h"
#include "platform/environment.h"
#include "platform/function_loader.h"

namespace horoscale {
namespace {

constexpr char kSoname[] = "libnccl.so.2";

std::mutex mutex;  // guards the next line
std::vector<std::string>& PackageDirectories() {
  static auto* const directories = new std::vector<std::string>;
  return *directories;
}

const char* LoadFunctions(const DynamicLibrary& library, NcclFunctions& f) {
  FunctionLoader loader(library);
#define HS_LOAD(name) loader.Load(#name, f.name)
  HS_LOAD(ncclGetVersion);
  HS_LOAD(ncclGetUniqueId);
  HS_LOAD(ncclGetErrorString);
  HS_LOAD(ncclGetLastError);
  HS_LOAD(ncclCommInitRankConfig);
  HS_LOAD(ncclCommGetAsyncError);
  HS_LOAD(ncclCommFinalize);
  HS_LOAD(ncclCommDestroy);
  HS_LOAD(ncclCommAbort);
  HS_LOAD(ncclRedOpCreatePreMulSum);
  HS_LOAD(ncclRedOpDestroy);
  HS_LOAD(ncclGroupStart);
  HS_LOAD(ncclGroupEnd);
  HS_LOAD(ncclAllReduce);
  HS_LOAD(ncclReduce);
  HS_LOAD(ncclBroadcast);
  HS_LOAD(ncclAllGather);
  HS_LOAD(ncclReduceScatter);
  HS_LOAD(ncclSend);
  HS_LOAD(ncclRecv);
#undef HS_LOAD
  return loader.missing();
}

Result<DynamicLibrary> OpenNccl() {
  for (const std::string& path : MappedFiles(kSoname)) {
    if (auto library = DynamicLibrary::OpenLoaded(path); library.ok()) return library;
  }
  if (const auto named = FindVariable("LIBNCCL")) return DynamicLibrary::Open(named->value);
  std::vector<std::string> names;
  {
    std::lock_guard lock(mutex);
    for (const std::string& directory : PackageDirectories()) {
      names.push_back(directory + "/nvidia/nccl/lib/" + kSoname);
    }
  }
  names.emplace_back(kSoname);
  std::string tried;
  for (const std::string& name : names) {
    auto library = DynamicLibrary::Open(name);
    if (library.ok()) return library;
    tried += "\n  " + library.status().message();
  }
  return Status(StatusCode::kUnimplemented,
                "can't load the NCCL library; set HOROSCALE_LIBNCCL to its path. Tried:" + tried);
}

}  // namespace

void NcclLibrary::AddPackageDirectory(std::string directory) {
  std::lock_guard lock(mutex);
  PackageDirectories().push_back(std::move(directory));
}

Result<const NcclLibrary*> NcclLibrary::Open() {
  static const Result<const NcclLibrary*> found = Find();
  return found;
}

Result<const NcclLibrary*> NcclLibrary::Find() {
  const auto library = OpenNccl();
  if (!library.ok()) return Status(StatusCode::kUnimplemented, library.status().message());
  const auto get_version = library->FindFunction<int(int*)>("ncclGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != nccl::kSuccess) {
    return Status(StatusCode::kUnimplemented, "the NCCL library does not report its version");
  }
  const std::string path = DynamicLibrary::FileOf(reinterpret_cast<const void*>(get_version));
  if (version < nccl::kOldestVersion) {
    return Status(StatusCode::kUnimplemented,
                  path + " is NCCL " + VersionText(version) + ", which is too old: " +
                      VersionText(nccl::kOldestVersion) + " or newer is required");
  }
  // Never freed: the last thread of the process may be one that destroys a communicator.
  auto* const found = new NcclLibrary;
  if (const char* const missing = LoadFunctions(*library, found->functions_)) {
    return Status(StatusCode::kUnimplemented, path + " has no " + missing);
  }
  found->path_ = path;
  found->version_ = version;
  return static_cast<const NcclLibrary*>(found);
}

Status NcclLibrary::Check(int result, const char* function, NcclCommHandle comm) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return Status::Ok();
  const char* const text = functions_.ncclGetErrorString(result);
  const char* const last = functions_.ncclGetLastError(comm);
  std::string message = std::string(function) + ": " + (text == nullptr ? "failed" : text);
  if (last != nullptr && *last != '\0') message += ": " + std::string(last);
  return {StatusCode::kSystem, std::move(message)};
}

std::string NcclLibrary::VersionText(int number) {
  // The numbering changed in 2.9: 2809 was 2.8.9.
  const int unit = number < 10000 ? 1000 : 10000;
  return std::to_string(number / unit) + "." + std::to_string(number % unit / 100) + "." +
         std::to_string(number % 100);
}

}  // namespace horoscale
