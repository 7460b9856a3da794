// The control plane's time per operation while many are pending: one member and its coordinator,
// without links. Alltoalls share no bucket, so each has its own plan entry.
//
//     pending_bench [pending ...]
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "core/coordinator.h"
#include "core/member.h"

namespace horoscale {
namespace {

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return result.TakeValue();
}

// Microseconds of CPU time per operation with `pending` of them, from their report to the end of
// the last one.
double Measure(OpKind kind, int pending) {
  CoordinatorOptions options;
  options.ranks = {0};
  Coordinator coordinator(options);
  Member member(0, 0, 1, 1024);
  Request request;
  request.signature.kind = kind;
  request.signature.tensors = {{DataType::kFloat32, {kFreeDimension, 256}}};
  const std::clock_t begin = std::clock();
  for (int i = 0; i < pending; ++i) {
    if (!member.Submit(request, static_cast<Token>(i + 1)).ok()) std::exit(1);
  }
  while (auto report = member.TakeReport()) {
    if (!coordinator.OnReport(0, *report, 0).ok()) std::exit(1);
  }
  while (coordinator.HasWork()) {
    for (const PlanEntry& entry : coordinator.TakePlan(0)) {
      const Action action = Must(member.Apply(entry));
      coordinator.OnExecuted(action.sequence);
    }
  }
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / pending * 1e6;
}

}  // namespace
}  // namespace horoscale

int main(int argc, char** argv) {
  std::vector<int> pending;
  for (int i = 1; i < argc; ++i) pending.push_back(std::atoi(argv[i]));
  if (pending.empty()) pending = {1, 1000, 16000, 64000};
  std::printf("%10s%20s%20s\n", "pending", "alltoall, us each", "allgather, us each");
  for (const int count : pending) {
    std::printf("%10d%20.2f%20.2f\n", count,
                horoscale::Measure(horoscale::OpKind::kAlltoall, count),
                horoscale::Measure(horoscale::OpKind::kAllgather, count));
  }
  return 0;
}
