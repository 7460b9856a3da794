// Information about the library: versions, found backends, and configuration variables.
#include <string>

#include "backends/nccl/cuda_driver.h"
#include "backends/nccl/nccl_library.h"
#include "collectives/fold.h"
#include "horoscale/horoscale.h"
#include "platform/tls_library.h"
#include "runtime/config.h"
#include "runtime/json.h"
#include "transport/mpi/mpi_library.h"

using horoscale::JsonObject;

int32_t hs_abi_version(void) { return HS_ABI_VERSION; }

const char* hs_version(void) { return HOROSCALE_VERSION; }

void hs_set_library_directory(const char* directory) {
  horoscale::MpiLibrary::SetLibraryDirectory(directory);
  horoscale::TlsLibrary::SetLibraryDirectory(directory);
}

void hs_add_package_directory(const char* directory) {
  horoscale::NcclLibrary::AddPackageDirectory(directory);
}

const char* hs_build_info(void) {
  const auto mpi = [] {
    const auto library = horoscale::MpiLibrary::Open();
    JsonObject object;
    if (!library.ok()) {
      object.Add("available", false).Add("reason", library.status().message());
    } else {
      object.Add("available", true)
          .Add("library", (*library)->path())
          .Add("version", (*library)->version());
    }
    return object.Build();
  };
  const auto nccl = [] {
    const auto cuda = horoscale::CudaDriver::Open();
    const auto library = horoscale::NcclLibrary::Open();
    JsonObject object;
    object.Add("available", cuda.ok() && library.ok());
    if (library.ok()) {
      object.Add("library", (*library)->path()).Add("version", "NCCL " + (*library)->version());
    } else {
      object.Add("reason", library.status().message());
    }
    if (cuda.ok()) {
      object.Add("cuda", (*cuda)->path()).Add("cuda_version", (*cuda)->version());
    } else {
      object.Add("cuda_reason", cuda.status().message());
    }
    return object.Build();
  };
  const auto encryption = [] {
    const auto library = horoscale::TlsLibrary::Open();
    JsonObject object;
    object.Add("available", library.ok());
    if (library.ok()) return object.Add("library", (*library)->name()).Build();
    return object.Add("reason", library.status().message()).Build();
  };
  static const std::string json =
      JsonObject()
          .Add("version", HOROSCALE_VERSION)
          .Add("abi_version", HS_ABI_VERSION)
          .Add("compiler", __VERSION__)
          .Add("fold_kernel", horoscale::FoldKernelName())
          .AddJson("backends", JsonObject()
                                   .AddJson("native", JsonObject().Add("available", true).Build())
                                   .AddJson("mpi", mpi())
                                   .AddJson("nccl", nccl())
                                   .Build())
          .AddJson("encryption", encryption())
          .Build();
  return json.c_str();
}

const char* hs_config_variables(void) {
  static const std::string json = [] {
    std::string list;
    for (const horoscale::ConfigVariable& variable : horoscale::ConfigVariables()) {
      list += list.empty() ? "" : ", ";
      list += JsonObject()
                  .Add("name", variable.name)
                  .Add("type", variable.type)
                  .Add("default", variable.default_value)
                  .Add("doc", variable.doc)
                  .Build();
    }
    return "[" + list + "]";
  }();
  return json.c_str();
}
