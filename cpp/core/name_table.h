// NameTable: maps names to small integers, so that each name is hashed only once.
//
// References are counted: each pending unit and each cache slot holds one. IDs are dense and
// reused, so that they can index vectors.
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
  // Returns the ID of a name, which is added if necessary, and adds a reference.
  NameId Acquire(std::string_view name);
  // kNoName for an unknown name.
  NameId Find(std::string_view name) const;
  void AddReference(NameId id);  // nothing for kNoName
  void Release(NameId id);       // nothing for kNoName

  // Empty for kNoName. Valid until the last reference is released.
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
