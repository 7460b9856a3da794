// Registers the kernels through TensorFlow's C++ API: compiled by the user's compiler against the
// installed version, where the library that came with horoscale doesn't pass its test.
#include <functional>
#include <utility>

#include "entry.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace horoscale::tensorflow {
namespace {

template <OpType type>
class Kernel : public ::tensorflow::AsyncOpKernel {
 public:
  explicit Kernel(::tensorflow::OpKernelConstruction* construction)
      : AsyncOpKernel(construction), kernel_(CreateKernel(type, construction)) {}
  ~Kernel() override { DeleteKernel(kernel_); }

  // The contexts of the C API are these under another name.
  void ComputeAsync(::tensorflow::OpKernelContext* context, DoneCallback done) override {
    tensorflow::ComputeAsync(kernel_, context, std::move(done));
  }

 private:
  void* kernel_;
};

#define HOROSCALE_KERNEL(index)                                                    \
  REGISTER_KERNEL_BUILDER(Name(kOps[index].name).Device(::tensorflow::DEVICE_CPU), \
                          Kernel<kOps[index].type>)

HOROSCALE_KERNEL(0);
HOROSCALE_KERNEL(1);
HOROSCALE_KERNEL(2);
HOROSCALE_KERNEL(3);
HOROSCALE_KERNEL(4);
HOROSCALE_KERNEL(5);
HOROSCALE_KERNEL(6);
HOROSCALE_KERNEL(7);

}  // namespace
}  // namespace horoscale::tensorflow
