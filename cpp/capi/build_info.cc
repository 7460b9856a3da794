// What this library is: versions, what it found, and its configuration variables.
#include <string>

#include "collectives/fold.h"
#include "horoscale/horoscale.h"
#include "runtime/config.h"
#include "runtime/json.h"
#include "transport/mpi/mpi_library.h"

using horoscale::JsonObject;

int32_t hs_abi_version(void) { return HS_ABI_VERSION; }

const char* hs_version(void) { return HOROSCALE_VERSION; }

void hs_set_library_directory(const char* directory) {
  horoscale::MpiLibrary::SetLibraryDirectory(directory);
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
  const auto absent = [](const char* reason) {
    return JsonObject().Add("available", false).Add("reason", reason).Build();
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
                                   .AddJson("nccl", absent("this version has no NCCL backend"))
                                   .Build())
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
