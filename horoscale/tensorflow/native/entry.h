// What a registration of the kernels (entry_c_api.cc, entry_cxx.cc) calls. Both sides of it are
// compiled against different declarations of TensorFlow's types: contexts are given as void*.
#pragma once

#include <functional>

#include "ops.h"

namespace horoscale::tensorflow {

// Makes the kernel of an op from its attributes (a TF_OpKernelConstruction). Null, after the
// construction was told of the failure, if they are wrong.
void* CreateKernel(OpType type, void* construction);

// Starts a kernel on a TF_OpKernelContext. Never blocks; done() may be called by any thread.
void ComputeAsync(void* kernel, void* context, std::function<void()> done);

void DeleteKernel(void* kernel);

}  // namespace horoscale::tensorflow
