#include "nccl/device_ranks.h"

#include <stdlib.h>

#include <sstream>

// ThreadSanitizer asks for it. The C library frees the thread-local memory of a detached thread that
// has ended in whichever thread comes by; that it has ended the kernel says, which is not seen.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:_dl_deallocate_tls\n"; }

namespace horoscale::testing {

Double::Double() {
  setenv("HOROSCALE_LIBCUDA", NCCL_DOUBLE, 1);
  setenv("HOROSCALE_LIBNCCL", NCCL_DOUBLE, 1);
  const auto library = DynamicLibrary::Open(NCCL_DOUBLE);
  if (!library.ok()) {
    ADD_FAILURE() << library.status().message();
    abort();
  }
#define HS_FIND(member, name) member = library->FindFunction<decltype(name)>(#name)
  HS_FIND(set_exclusive, double_set_exclusive);
  HS_FIND(set_delay, double_set_delay);
  HS_FIND(hold, double_hold);
  HS_FIND(fail_next, double_fail_next);
  HS_FIND(set_capturing, double_set_capturing);
  HS_FIND(live_communicators, double_live_communicators);
  HS_FIND(aborted_communicators, double_aborted_communicators);
  HS_FIND(log_, double_log);
#undef HS_FIND
}

const Double& Double::Get() {
  static const Double opened;
  return opened;
}

std::vector<std::string> Double::Launches(int device) const {
  std::string text(log_(device, nullptr, 0), '\0');
  text.resize(std::min(text.size(), log_(device, text.data(), text.size())));
  std::vector<std::string> communicators;
  std::istringstream lines(text);
  for (std::string communicator, call; lines >> communicator >> call;) {
    communicators.push_back(communicator);
  }
  return communicators;
}

CudaDevice& Device(int ordinal) {
  (void)Double::Get();
  const auto device = CudaDevice::Get(ordinal);
  if (!device.ok()) {
    ADD_FAILURE() << device.status().message();
    abort();
  }
  return **device;
}

}  // namespace horoscale::testing
