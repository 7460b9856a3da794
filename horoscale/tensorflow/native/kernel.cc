// Making kernels from attributes, and what they compute without an operation of the job.
#include "kernel.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <thread>
#include <vector>

#include "call.h"
#include "entry.h"
#include "messages_call.h"
#include "raii.h"
#include "runtime.h"

namespace horoscale::tensorflow {
namespace {

// What HoroscaleTopology can be asked; horoscale/tensorflow/values.py has the same numbers.
enum Question { kSize, kRank, kLocalSize, kLocalRank, kIncluded };

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  int64_t Int(const char* name) {
    int64_t value = 0;
    if (status_.ok()) {
      TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status_.get());
    }
    return value;
  }

  std::vector<int64_t> Ints(const char* name) {
    int32_t list_size = 0;
    int32_t bytes = 0;
    if (status_.ok()) {
      TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
    }
    std::vector<int64_t> values(static_cast<size_t>(std::max(list_size, 0)));
    if (status_.ok() && !values.empty()) {
      TF_OpKernelConstruction_GetAttrInt64List(construction_, name, values.data(), list_size,
                                               status_.get());
    }
    return values;
  }

  std::string String(const char* name) {
    int32_t list_size = 0;
    int32_t bytes = 0;
    if (status_.ok()) {
      TF_OpKernelConstruction_GetAttrSize(construction_, name, &list_size, &bytes, status_.get());
    }
    std::string value(static_cast<size_t>(bytes), '\0');
    if (status_.ok() && bytes > 0) {
      TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(),
                                            status_.get());
    }
    return value;
  }

  bool ok() {
    if (!status_.ok()) TF_OpKernelConstruction_Failure(construction_, status_.get());
    return status_.ok();
  }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

void SetScalar(TF_OpKernelContext* context, int32_t value) {
  Status status;
  TensorPtr output(
      TF_AllocateOutput(context, 0, TF_INT32, nullptr, 0, sizeof(int32_t), status.get()));
  if (status.ok()) {
    *static_cast<int32_t*>(TF_TensorData(output.get())) = value;
  } else {
    TF_OpKernelContext_Failure(context, status.get());
  }
}

void AnswerQuestion(const Kernel& kernel, TF_OpKernelContext* context) {
  const CurrentRuntime runtime;
  hs_topology topology{};
  int32_t value = 0;
  Membership set;
  if (hs_code code = runtime.Topology(&topology); code != HS_OK) return FailNow(context, code);
  if (kernel.question == kLocalSize) {
    value = topology.local_size;
  } else if (kernel.question == kLocalRank) {
    value = topology.local_rank;
  } else {
    const hs_code code = runtime.MembershipOf(static_cast<int32_t>(kernel.process_set), &set);
    if (code != HS_OK) return FailNow(context, code);
    value = kernel.question == kSize   ? set.size
            : kernel.question == kRank ? set.position
                                       : static_cast<int32_t>(set.position >= 0);
  }
  SetScalar(context, value);
}

void TestFromAnotherThread(TF_OpKernelContext* context, std::function<void()> done) {
  std::thread([context, done = std::move(done)] {
    Status status;
    TF_Tensor* input = nullptr;
    TF_GetInput(context, 0, &input, status.get());
    if (status.ok()) {
      const TensorPtr owned(input);
      SetScalar(context, *static_cast<int32_t*>(TF_TensorData(input)));
    } else {
      TF_OpKernelContext_Failure(context, status.get());
    }
    done();
  }).detach();
}

}  // namespace

void* CreateKernel(OpType type, void* construction) {
  auto kernel = std::make_unique<Kernel>();
  kernel->type = type;
  if (type == OpType::kSelfTest) return kernel.release();
  Attributes attributes(static_cast<TF_OpKernelConstruction*>(construction));
  kernel->name = attributes.String("tensor_name");
  kernel->process_set = attributes.Int("process_set");
  kernel->priority = attributes.Int("priority");
  if (Reduces(type)) {
    kernel->reduce_op = attributes.Int("reduce_op");
    kernel->prescale = std::bit_cast<double>(attributes.Int("prescale_bits"));
    kernel->postscale = std::bit_cast<double>(attributes.Int("postscale_bits"));
    kernel->encoding = attributes.Int("encoding");
  }
  if (type == OpType::kReducescatter) kernel->splits = attributes.Ints("splits");
  if (type == OpType::kMessages) {
    kernel->sends = attributes.Ints("sends");
    kernel->peers = attributes.Ints("peers");
    kernel->tags = attributes.Ints("tags");
    kernel->channel = attributes.Int("channel");
  }
  if (HasRoot(type)) kernel->root = attributes.Int("root_rank");
  if (type == OpType::kTopology) kernel->question = attributes.Int("question");
  return attributes.ok() ? kernel.release() : nullptr;
}

void ComputeAsync(void* kernel_pointer, void* context_pointer, std::function<void()> done) {
  auto* kernel = static_cast<Kernel*>(kernel_pointer);
  auto* context = static_cast<TF_OpKernelContext*>(context_pointer);
  if (kernel->type == OpType::kSelfTest) return TestFromAnotherThread(context, std::move(done));
  if (kernel->type == OpType::kTopology) {
    AnswerQuestion(*kernel, context);
    return done();
  }
  if (kernel->type == OpType::kMessages) {
    return MessagesCall::Start(kernel, context, std::move(done));
  }
  Call::Start(kernel, context, std::move(done));
}

void DeleteKernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

}  // namespace horoscale::tensorflow
