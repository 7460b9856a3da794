// Simulates one random job in which ranks exit or stop: whole runtimes over the inproc transport,
// driven turn by turn in one thread, so that a seed determines the scenario.
//
// Checks: each operation ends exactly once; no rank waits forever; ranks in a set with the victim
// get an error that names the victim, the operation and the set; other ranks get no error;
// successful operations have the right result. Operations are collectives, and messages between two
// ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "faults/fault_plan.h"
#include "runtime/runtime.h"
#include "sim/random.h"
#include "transport/inproc/inproc_fabric.h"

namespace horoscale::sim {

enum class Fault { kNone, kKill, kException, kCleanExit, kStop, kStopThenKill };
enum class Phase { kRegister, kNegotiate, kExecute, kShutdown, kAnyTime };
inline constexpr std::array kFaults = {Fault::kNone,      Fault::kKill, Fault::kException,
                                       Fault::kCleanExit, Fault::kStop, Fault::kStopThenKill};
inline constexpr std::array kPhases = {Phase::kRegister, Phase::kNegotiate, Phase::kExecute,
                                       Phase::kShutdown, Phase::kAnyTime};
std::string_view Name(Fault fault);
std::string_view Name(Phase phase);

class FaultScenario {
 public:
  FaultScenario(uint64_t seed, Fault fault, Phase phase);
  ~FaultScenario();

  void Run();
  // Whether the fault occurred; a job can end before it.
  bool struck() const { return struck_; }

  // Operations that ended with all members' posts.
  uint64_t num_posted() const { return num_posted_; }
  // Messages that were received.
  uint64_t num_messages() const { return num_messages_; }

 private:
  struct Call {
    OperationPtr operation;
    std::vector<int> ranks;      // of its set
    const Plan* plan = nullptr;  // null: a registration
    std::vector<float> data;
    int ends = 0;
    bool checked = false;
    bool made_again = false;
  };
  struct Rank {
    std::unique_ptr<Runtime> runtime;
    std::vector<size_t> program;  // indices into plans_, in this rank's order
    size_t next = 0;
    size_t sets_added = 0;
    std::vector<std::unique_ptr<Call>> calls;
    bool stopped = false;
    bool ended = false;
    bool gives_up = false;  // leave after an error, instead of continuing with the remaining sets
  };

  bool Act(int rank);
  bool Submit(int rank);
  bool CallAgain(int rank);
  bool RegisterNext(int rank);
  void Enqueue(int rank, Call& call);
  bool Leave(int rank);
  static bool HasPending(const Rank& rank);
  int SetId(int rank, const std::vector<int>& ranks) const;

  bool MomentHasCome() const;
  void Strike();
  void RunUntilQuiet();
  void End(int rank);

  void Check(int rank, Call& call);
  void CheckError(int rank, const Call& call) const;
  void CheckNobodyWaits() const;
  bool IsSent(const Plan& plan) const;
  std::string Describe(int rank, const Call& call) const;

  Random random_;
  const Fault fault_;
  const Phase phase_;
  const int size_;
  const int victim_;
  const uint32_t moment_;  // steps until the fault, in kAnyTime
  uint32_t steps_ = 0;
  bool struck_ = false;
  const bool posts_;  // ranks block in each operation, in one order, so it may be posted
  uint64_t num_posted_ = 0;
  uint64_t num_messages_ = 0;
  bool leaving_;  // ranks leave as soon as they can; false: only once no rank makes progress
  std::shared_ptr<InprocFabric> fabric_;
  std::vector<std::vector<int>> sets_;  // besides the global one, in registration order
  std::vector<Plan> plans_;
  std::vector<Rank> ranks_;
};

}  // namespace horoscale::sim
