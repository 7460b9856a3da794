// What encodings lose of a member's named operations, as far as its coordinator doesn't know it
// yet: reports repeat nothing, and small changes are not worth their bytes. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/messages.h"

namespace horoscale {

class ErrorReports {
 public:
  // An operation has ended with a relative error.
  void Note(uint32_t slot, const Encoding& encoding, double error);
  // The slot stands for something else from now on.
  void Forget(uint32_t slot);
  // What has changed since it was taken, by slot; at most one for each.
  std::vector<EncodingError> Take();

 private:
  bool IsTold(const EncodingError& now) const;

  std::map<uint32_t, EncodingError> changed_;
  std::unordered_map<uint32_t, EncodingError> told_;
};

}  // namespace horoscale
