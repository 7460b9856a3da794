#include "runtime/json.h"

#include <cstdio>

namespace horoscale {

std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned char>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string JsonNumber(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

JsonObject& JsonObject::AddJson(std::string_view key, std::string_view json) {
  if (!members_.empty()) members_ += ", ";
  members_ += JsonString(key);
  members_ += ": ";
  members_ += json;
  return *this;
}

JsonObject& JsonObject::Add(std::string_view key, std::string_view text) {
  return AddJson(key, JsonString(text));
}
JsonObject& JsonObject::Add(std::string_view key, double value) {
  return AddJson(key, JsonNumber(value));
}
JsonObject& JsonObject::Add(std::string_view key, uint64_t value) {
  return AddJson(key, std::to_string(value));
}
JsonObject& JsonObject::Add(std::string_view key, int value) {
  return AddJson(key, std::to_string(value));
}
JsonObject& JsonObject::Add(std::string_view key, bool value) {
  return AddJson(key, value ? "true" : "false");
}

}  // namespace horoscale
