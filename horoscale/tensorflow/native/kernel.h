// Kernel: the attributes of one node of a graph, and the calls of it that are in flight.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "c_api.h"
#include "horoscale/horoscale.h"
#include "ops.h"

namespace horoscale::tensorflow {

class Call;

struct Kernel {
  OpType type = OpType::kSelfTest;
  std::string name;
  int64_t process_set = 0;
  int64_t priority = 0;
  int64_t reduce_op = 0;
  int64_t encoding = 0;
  int64_t root = 0;
  int64_t question = 0;
  std::vector<int64_t> splits;
  std::vector<int64_t> sends;  // of messages, as the next two
  std::vector<int64_t> peers;
  std::vector<int64_t> tags;
  int64_t channel = 0;
  double prescale = 1.0;
  double postscale = 1.0;

  // A loop may run a node again before the last time is over, under the same name: those wait.
  std::mutex mutex;
  bool busy = false;
  std::deque<Call*> waiting;
};

}  // namespace horoscale::tensorflow
