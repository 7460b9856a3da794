// Gatherings: the store's state of gather requests: which parties have contributed, and what they
// receive when all have. Pure.
//
// A repeated contribution of a party replaces its previous one. Joins (see store.h) have rounds,
// and remember a failure: parties that arrive later receive it once, so that nobody waits for a
// party that will not come. A party that knows of the failure and contributes again, as the failed
// one does, starts a new attempt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "rendezvous/store.h"

namespace horoscale {

class Gatherings {
 public:
  using Guest = uint64_t;  // a waiting connection; the caller assigns the numbers

  // The result for guests with one label when the gathering is complete.
  struct Party {
    std::vector<Guest> guests;
    Gathered gathered;
  };
  struct Outcome {
    std::vector<Party> complete;
    std::vector<std::pair<Guest, Status>> refused;
  };

  explicit Gatherings(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // The guest waits until an Outcome contains it.
  Outcome Add(Guest guest, const GatherRequest& request);

  // The guest's connection was closed: other guests must not wait for it.
  Outcome Remove(Guest guest, const std::string& key);

  // The guest's wait has timed out: it is refused with kTimeout and the missing places.
  Outcome Expire(Guest guest, const std::string& key);

 private:
  struct Entry {
    Guest guest = 0;
    std::string label;
    std::string will;
    std::vector<std::byte> value;
  };
  struct Failure {
    std::string reason;
    std::set<uint32_t> told;  // places that know of it, including that of the failed party
  };
  struct Gathering {
    uint32_t count = 0;
    bool is_join = false;
    uint64_t round = 0;
    std::map<uint32_t, Entry> entries;  // by place
    std::optional<Failure> failure;
  };
  using Table = std::map<std::string, Gathering, std::less<>>;
  struct Place {
    Table::iterator at;
    std::map<uint32_t, Entry>::iterator entry;
  };

  // The guest's place in the gathering, if it waits.
  std::optional<Place> Find(Guest guest, const std::string& key);
  static Status Check(const Gathering& gathering, const GatherRequest& request);
  static std::vector<int> Missing(const Gathering& gathering);
  Outcome Complete(Table::iterator at);
  // Refuses all guests that wait for the place, and those that arrive later.
  void Fail(Gathering& gathering, uint32_t place, const std::string& reason, Outcome* outcome);
  void Erase(Gathering& gathering, std::map<uint32_t, Entry>::iterator entry);
  void ForgetIfIdle(Table::iterator at);

  const size_t capacity_bytes_;
  size_t used_bytes_ = 0;
  Table table_;
};

}  // namespace horoscale
