// The ops by name, and what their kernels have to know of each.
#pragma once

#include <array>

// Another build of the library can be loaded beside this one if its ops have other names.
#ifndef HOROSCALE_OP_PREFIX
#define HOROSCALE_OP_PREFIX "Horoscale"
#endif

namespace horoscale::tensorflow {

enum class OpType {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kReducescatter,
  kReduce,
  kGather,
  kScatter,
  kMessages,  // sends and receives, which nobody else takes part in
  kJoin,
  kTopology,  // what the job or a process set looks like from here
  kSelfTest,  // what it is given, from another thread after compute() has returned
};

struct OpName {
  OpType type;
  const char* name;
};

inline constexpr std::array<OpName, 12> kOps = {{
    {OpType::kAllreduce, HOROSCALE_OP_PREFIX "Allreduce"},
    {OpType::kAllgather, HOROSCALE_OP_PREFIX "Allgather"},
    {OpType::kBroadcast, HOROSCALE_OP_PREFIX "Broadcast"},
    {OpType::kAlltoall, HOROSCALE_OP_PREFIX "Alltoall"},
    {OpType::kReducescatter, HOROSCALE_OP_PREFIX "Reducescatter"},
    {OpType::kReduce, HOROSCALE_OP_PREFIX "Reduce"},
    {OpType::kGather, HOROSCALE_OP_PREFIX "Gather"},
    {OpType::kScatter, HOROSCALE_OP_PREFIX "Scatter"},
    {OpType::kMessages, HOROSCALE_OP_PREFIX "Messages"},
    {OpType::kJoin, HOROSCALE_OP_PREFIX "Join"},
    {OpType::kTopology, HOROSCALE_OP_PREFIX "Topology"},
    {OpType::kSelfTest, HOROSCALE_OP_PREFIX "SelfTest"},
}};

constexpr bool Reduces(OpType type) {
  return type == OpType::kAllreduce || type == OpType::kReducescatter || type == OpType::kReduce;
}
constexpr bool HasRoot(OpType type) {
  return type == OpType::kBroadcast || type == OpType::kReduce || type == OpType::kGather ||
         type == OpType::kScatter;
}

}  // namespace horoscale::tensorflow
