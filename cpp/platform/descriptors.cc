#include "platform/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace horoscale {

void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // on failure, errors name the limit later
}

bool LacksDescriptors(const Status& failure) {
  const int errnum = failure.detail().errnum;
  return errnum == EMFILE || errnum == ENFILE;
}

}  // namespace horoscale
