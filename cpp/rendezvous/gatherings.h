// Gatherings: who waits for whom at a store, and what they get when all have come. Pure.
//
// A party that comes again replaces what it gave before. Joins (see store.h) have rounds, and
// remember a failure: parties that have not come by then are told when they do, once, so that
// nobody waits for one that will not come. A party that knows of it and comes again, as the one
// that failed does, begins a new attempt.
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
  using Guest = uint64_t;  // a connection that waits, as the caller numbers them

  // What guests with one label are told when all have come.
  struct Party {
    std::vector<Guest> guests;
    Gathered gathered;
  };
  struct Outcome {
    std::vector<Party> complete;
    std::vector<std::pair<Guest, Status>> refused;
  };

  explicit Gatherings(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // The guest waits until an outcome names it.
  Outcome Add(Guest guest, const GatherRequest& request);

  // The guest's connection has ended: nobody waits for it in vain.
  Outcome Remove(Guest guest, const std::string& key);

  // The guest has waited long enough: it is refused with kTimeout and the places that are missing.
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
    std::set<uint32_t> told;  // know of it: whose it is, too
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

  // Where the guest waits, if it does.
  std::optional<Place> Find(Guest guest, const std::string& key);
  static Status Check(const Gathering& gathering, const GatherRequest& request);
  static std::vector<int> Missing(const Gathering& gathering);
  Outcome Complete(Table::iterator at);
  // All who wait for the place are refused; who comes later will be.
  void Fail(Gathering& gathering, uint32_t place, const std::string& reason, Outcome* outcome);
  void Erase(Gathering& gathering, std::map<uint32_t, Entry>::iterator entry);
  void ForgetIfIdle(Table::iterator at);

  const size_t capacity_bytes_;
  size_t used_bytes_ = 0;
  Table table_;
};

}  // namespace horoscale
