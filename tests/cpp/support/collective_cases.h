// Random collective operations with their expected results, for any Exchange. A case is created
// once for all members; each member then creates its Collective on its own exchange, and the test
// runs it in any way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "support/reference_fold.h"

namespace horoscale::testing {

class CollectiveCase {
 public:
  virtual ~CollectiveCase() = default;
  // May be called for different members by different threads.
  virtual std::unique_ptr<Collective> Make(Exchange& exchange) = 0;
  // Called when the collectives of all members are done: a description of the error, or an empty
  // string.
  virtual std::string Check() const = 0;
  virtual std::string Describe() const = 0;
};

struct AllreduceCaseOptions {
  uint32_t members = 2;
  Reduction reduction = {};
  int64_t elements = 0;
  int cuts = 0;  // segments - 1
  bool in_place = false;
  std::vector<uint32_t> absent = {};
  std::vector<uint32_t> hosts = {};  // hosts of the members; empty if all are on one
  std::optional<DataType> wire = {};
};
std::unique_ptr<CollectiveCase> MakeAllreduceCase(std::mt19937_64& random,
                                                  const AllreduceCaseOptions& options);

// With a random root that is not absent.
std::unique_ptr<CollectiveCase> MakeReduceCase(std::mt19937_64& random,
                                               const AllreduceCaseOptions& options);

struct RowsCaseOptions {
  uint32_t members = 2;
  DataType dtype = DataType::kFloat32;
  int items = 1;
  int64_t max_rows = 8;
  int64_t max_row_elements = 8;
  bool splits = false;  // of a reducescatter
  std::vector<uint32_t> hosts = {};
  std::optional<DataType> wire = {};
};
// With or without splits.
std::unique_ptr<CollectiveCase> MakeReducescatterCase(std::mt19937_64& random,
                                                      const RowsCaseOptions& options,
                                                      const Reduction& reduction);
std::unique_ptr<CollectiveCase> MakeAllgatherCase(std::mt19937_64& random,
                                                  const RowsCaseOptions& options);
// With a random root.
std::unique_ptr<CollectiveCase> MakeGatherCase(std::mt19937_64& random,
                                               const RowsCaseOptions& options);
std::unique_ptr<CollectiveCase> MakeScatterCase(std::mt19937_64& random,
                                                const RowsCaseOptions& options);
std::unique_ptr<CollectiveCase> MakeAlltoallCase(std::mt19937_64& random,
                                                 const RowsCaseOptions& options);
std::unique_ptr<CollectiveCase> MakeBroadcastCase(std::mt19937_64& random, uint32_t members,
                                                  int64_t bytes, int cuts,
                                                  std::vector<uint32_t> absent);

// Any of the above, with up to `max_bytes` per member.
std::unique_ptr<CollectiveCase> MakeRandomCase(std::mt19937_64& random, uint32_t members,
                                               int64_t max_bytes,
                                               const std::vector<uint32_t>& hosts = {});

// A random valid reduction: any dtype and operator, sometimes scaled.
Reduction RandomReduction(std::mt19937_64& random, int64_t participants);

}  // namespace horoscale::testing
