#include "sim/workload.h"

#include <string>
#include <utility>

namespace horoscale::sim {
namespace {

class Generator {
 public:
  Generator(Random& random, const WorkloadOptions& options, const std::vector<int>& ranks)
      : random_(random),
        options_(options),
        ranks_(ranks),
        quiet_(random.Chance(30)),
        has_priorities_(!quiet_ || random.Chance(30)) {
    // Only operations that are few, without priorities and called in one order by all members, may
    // be posted.
    const int named =
        quiet_ ? random_.Between(0, 2) : random_.Between(1, random_.Chance(20) ? 60 : 12);
    for (int i = 0; i < named; ++i)
      pool_.push_back({"tensor." + std::to_string(i), RandomSignature()});
    const int unnamed = quiet_ ? random_.Between(named == 0 ? 1 : 0, 2) : random_.Between(0, 4);
    for (int i = 0; i < unnamed; ++i) pool_.push_back({"", RandomSignature()});
  }

  Epoch MakeEpoch() {
    const int steps = random_.Between(1, quiet_ ? 20 : 6);
    std::vector<int> own_steps(ranks_.size(), steps);
    if (options_.joins) {
      for (int& own : own_steps) own = random_.Between(0, steps);
    }
    Epoch epoch(ranks_.size());
    for (int step = 0; step < steps; ++step) AddStep(step, own_steps, epoch);
    return epoch;
  }

 private:
  struct PoolEntry {
    std::string name;
    Signature signature;
  };

  TensorSpec RandomTensor(OpKind kind, DataType dtype) {
    TensorSpec tensor{.dtype = dtype, .shape = {}};
    const int dimensions = random_.Between(HasFreeFirstDimension(kind) ? 1 : 0, 3);
    for (int i = 0; i < dimensions; ++i)
      tensor.shape.push_back(random_.Between(random_.Chance(5) ? 0 : 1, 12));
    if (HasFreeFirstDimension(kind)) tensor.shape[0] = kFreeDimension;
    return tensor;
  }

  Signature RandomSignature() {
    static const std::vector<OpKind> kKinds = {
        OpKind::kAllreduce, OpKind::kAllreduce,     OpKind::kAllreduce, OpKind::kAllgather,
        OpKind::kBroadcast, OpKind::kReducescatter, OpKind::kAlltoall,  OpKind::kBarrier,
        OpKind::kReduce,    OpKind::kGather,        OpKind::kScatter};
    static const std::vector<DataType> kTypes = {DataType::kFloat32, DataType::kFloat32,
                                                 DataType::kBfloat16, DataType::kInt64};
    Signature signature;
    signature.kind = random_.Pick(kKinds);
    if (signature.kind == OpKind::kBarrier) return signature;
    if (HasRoot(signature.kind)) signature.root = random_.Pick(ranks_);
    if (random_.Chance(10)) signature.prescale = 0.5;
    if (random_.Chance(10)) signature.encoding = {EncodingKind::kFloat16};
    if (random_.Chance(10)) signature.encoding = {EncodingKind::kAdaptive, 1000};
    if (random_.Chance(20)) signature.reduce_op = ReduceOp::kAverage;
    const bool takes_one =
        signature.kind == OpKind::kAlltoall || signature.kind == OpKind::kScatter;
    const bool group = !takes_one && random_.Chance(20);
    if (signature.kind == OpKind::kReducescatter && random_.Chance(30)) {
      for (size_t i = 0; i < ranks_.size(); ++i) signature.splits.push_back(random_.Between(0, 3));
    }
    const int tensors = group ? random_.Between(2, 8) : 1;
    const DataType dtype = random_.Pick(kTypes);
    for (int i = 0; i < tensors; ++i) {
      signature.tensors.push_back(
          RandomTensor(signature.kind, group && random_.Chance(30) ? random_.Pick(kTypes) : dtype));
    }
    return signature;
  }

  Signature Contradiction(const Signature& signature) {
    Signature other = signature;
    while (other == signature) {
      if (other.tensors.empty() || random_.Chance(20)) {
        other = RandomSignature();
      } else {
        other.tensors[0].shape.push_back(random_.Between(1, 3));
      }
    }
    return other;
  }

  void AddStep(int step, const std::vector<int>& own_steps, Epoch& epoch) {
    std::vector<std::vector<Submission>> named(ranks_.size());
    std::vector<std::vector<Submission>> unnamed(ranks_.size());
    for (PoolEntry& entry : pool_) {
      if (random_.Chance(15)) continue;
      if (options_.shapes_change && random_.Chance(8)) entry.signature = RandomSignature();
      Submission submission;
      submission.operation = next_operation_++;
      submission.request.name = entry.name;
      const bool contradicted = options_.mismatches && random_.Chance(8);
      const Signature other = Contradiction(entry.signature);
      for (size_t member = 0; member < ranks_.size(); ++member) {
        submission.request.signature = contradicted && random_.Chance(40) ? other : entry.signature;
        submission.request.priority =
            !has_priorities_ || random_.Chance(50) ? 0 : random_.Between(-2, 3);
        if (own_steps[member] <= step) continue;
        (entry.name.empty() ? unnamed : named)[member].push_back(submission);
      }
    }
    for (size_t member = 0; member < ranks_.size(); ++member) {
      Merge(std::move(named[member]), std::move(unnamed[member]), epoch[member]);
    }
  }

  // Named operations in any order, unless members block in each; unnamed ones in their own order.
  void Merge(std::vector<Submission> named, std::vector<Submission> unnamed,
             std::vector<Submission>& out) {
    if (!quiet_) random_.Shuffle(named);
    size_t next_named = 0;
    size_t next_unnamed = 0;
    while (next_named < named.size() || next_unnamed < unnamed.size()) {
      const bool take_named = next_unnamed == unnamed.size() ||
                              (next_named < named.size() && (quiet_ || random_.Chance(70)));
      out.push_back(take_named ? named[next_named++] : unnamed[next_unnamed++]);
    }
  }

  Random& random_;
  const WorkloadOptions& options_;
  const std::vector<int>& ranks_;
  const bool quiet_;
  const bool has_priorities_;
  std::vector<PoolEntry> pool_;
  uint64_t next_operation_ = 1;
};

}  // namespace

std::vector<Epoch> MakeWorkload(Random& random, const WorkloadOptions& options,
                                const std::vector<int>& ranks) {
  Generator generator(random, options, ranks);
  std::vector<Epoch> epochs;
  const int count = options.joins ? random.Between(1, 3) : 1;
  for (int i = 0; i < count; ++i) epochs.push_back(generator.MakeEpoch());
  return epochs;
}

}  // namespace horoscale::sim
