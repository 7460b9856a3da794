// Registers the kernels through TensorFlow's C API, which is the same in every version.
#include <cstdio>
#include <memory>
#include <utility>

#include "entry.h"
#include "gnu_function.h"
#include "raii.h"

namespace horoscale::tensorflow {
namespace {

template <OpType type>
void* Create(TF_OpKernelConstruction* construction) {
  return CreateKernel(type, construction);
}

// `done` points at TensorFlow's own std::function<void()>, a local variable that is gone when this
// returns: what it holds has to be moved out. That is not promised by the C API, which is why
// the library is tested whenever it is loaded.
std::function<void()> Take(TF_AsyncOpKernelDoneCallback* done) {
  return [taken = std::make_shared<GnuFunction>(done)] { (*taken)(); };
}

void Compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  ComputeAsync(kernel, context, Take(done));
}

template <OpType type>
void Register(const char* name) {
  TF_KernelBuilder* builder =
      TF_NewAsyncKernelBuilder(name, "CPU", Create<type>, Compute, DeleteKernel);
  Status status;
  TF_RegisterKernelBuilder(name, builder, status.get());
  if (!status.ok()) {
    std::fprintf(stderr, "horoscale: TensorFlow refused the kernel of %s: %s\n", name,
                 TF_Message(status.get()));
  }
}

template <size_t... index>
bool RegisterAll(std::index_sequence<index...>) {
  (Register<kOps[index].type>(kOps[index].name), ...);
  return true;
}

[[maybe_unused]] const bool kRegistered = RegisterAll(std::make_index_sequence<kOps.size()>{});

}  // namespace
}  // namespace horoscale::tensorflow
