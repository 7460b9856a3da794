// Small numbers for names, so that a name is hashed once where it enters and never again.
//
// References are counted: a pending unit holds one, and a cache slot holds one. Ids are dense and
// given again, so that users can index vectors by them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace horoscale {

using NameId = uint32_t;
inline constexpr NameId kNoName = UINT32_MAX;  // of unnamed units

class NameTable {
 public:
  // The id of a name, new or known, with one more reference.
  NameId Acquire(std::string_view name);
  // kNoName for a name that nobody holds.
  NameId Find(std::string_view name) const;
  void AddReference(NameId id);  // nothing for kNoName
  void Release(NameId id);       // nothing for kNoName

  // Empty for kNoName. Valid until the last reference goes.
  std::string_view Text(NameId id) const;
  size_t size() const { return ids_.size(); }

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Entry {
    const std::string* text = nullptr;  // the key inside ids_
    uint32_t references = 0;
  };

  std::unordered_map<std::string, NameId, TextHash, std::equal_to<>> ids_;
  std::vector<Entry> entries_;
  std::vector<NameId> free_;
};

}  // namespace horoscale
