// Compares cpp/backends/nccl/nccl_api.h with the real nccl.h that this is compiled against.
#include <nccl.h>

#include <cstddef>

#include "backends/nccl/nccl_api.h"

namespace horoscale {

static_assert(nccl::kSuccess == ncclSuccess && nccl::kInProgress == ncclInProgress);
static_assert(nccl::kInt8 == ncclInt8 && nccl::kUint8 == ncclUint8);
static_assert(nccl::kInt32 == ncclInt32 && nccl::kInt64 == ncclInt64);
static_assert(nccl::kFloat16 == ncclFloat16 && nccl::kFloat32 == ncclFloat32);
static_assert(nccl::kFloat64 == ncclFloat64);
static_assert(nccl::kBfloat16 ==
              9);  // ncclBfloat16, which the header defines for CUDA's compiler only
static_assert(nccl::kSum == ncclSum && nccl::kProd == ncclProd && nccl::kMax == ncclMax);
static_assert(nccl::kMin == ncclMin && nccl::kAvg == ncclAvg);
static_assert(nccl::kScalarInHostMemory == ncclScalarHostImmediate);
static_assert(nccl::kUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(NCCL_VERSION_CODE >= nccl::kOldestVersion);

// Later versions append fields.
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));

}  // namespace horoscale

int main() {
  const ncclConfig_t real = NCCL_CONFIG_INITIALIZER;
  const horoscale::NcclConfig own;
  return own.magic == real.magic ? 0 : 1;
}
