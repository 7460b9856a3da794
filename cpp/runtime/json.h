// Writes simple JSON: quoted strings and numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace horoscale {

// Includes the quotes; control characters and non-ASCII bytes are escaped.
std::string JsonString(std::string_view text);
std::string JsonNumber(double value);

// Builds {"key": value, …} member by member.
class JsonObject {
 public:
  JsonObject& Add(std::string_view key, std::string_view text);
  JsonObject& Add(std::string_view key, const char* text) {
    return Add(key, std::string_view(text));
  }
  JsonObject& Add(std::string_view key, double value);
  JsonObject& Add(std::string_view key, uint64_t value);
  JsonObject& Add(std::string_view key, int value);
  JsonObject& Add(std::string_view key, bool value);
  // Adds a value that is already JSON.
  JsonObject& AddJson(std::string_view key, std::string_view json);
  std::string Build() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

}  // namespace horoscale
