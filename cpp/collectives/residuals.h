// What encodings have lost of a tensor on this member, to be sent with its next values.
//
// Elements never change place, however plans cut and fuse the tensor: it is divided into units, and
// a unit's place among the members follows from its index in the tensor alone. Of each unit one
// member of a host folds the host's values, and keeps what is lost of them; where there are more
// than two hosts, one of these members folds the hosts' sums and keeps what is lost of the result.
// In a reducescatter, a member of a host folds all that a member of another host gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace horoscale {

struct UnitPlaces {
  uint32_t lanes = 1;  // members of a host that fold
  uint32_t hosts = 1;
  int64_t elements = 0;  // of a unit

  struct Place {
    uint32_t lane = 0;
    uint32_t host = 0;
    int64_t sum = 0;     // which of those units that the lane folds
    int64_t result = 0;  // which of these that the host's member of the lane folds over hosts
  };
  // `home` spreads the first units of tensors over the members: a number that all agree on.
  Place Of(int64_t unit, uint32_t home) const;

  bool operator==(const UnitPlaces&) const = default;
};

// A home for a tensor of an operation of this name.
uint32_t HomeOf(std::string_view name, uint32_t tensor);

struct TensorResiduals {
  // Makes room for a tensor of so many elements. What is there of one that is divided otherwise is
  // forgotten.
  void Prepare(const UnitPlaces& new_places, uint32_t home, int64_t tensor_elements);
  // The same for a reducescatter of so many elements to each member, of which this member keeps the
  // residuals of `kept`.
  void PrepareShares(std::vector<int64_t> new_shares, int64_t unit_elements, int64_t kept);
  void Scale(float factor);
  // Whether there is as much as a tensor that is divided so can have.
  bool HasSizes(uint32_t home) const;

  UnitPlaces places;                 // one lane and host in a reducescatter
  int64_t elements = 0;              // of the tensor
  std::vector<int64_t> shares = {};  // of a reducescatter: elements for each member
  std::vector<float> sums = {};
  std::vector<float> results = {};  // empty with two hosts, which fold all themselves
  // Of a sample of the values that were encoded since this was taken, and of their residuals.
  double squares = 0;
  double error_squares = 0;
};

}  // namespace horoscale
