// Writes and reads the primitives of control messages. Used only by the codecs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace horoscale {

class WireWriter {
 public:
  WireWriter() { bytes_.reserve(kUsualBytes); }
  // Reuses the memory of an old message.
  explicit WireWriter(std::vector<std::byte> old) : bytes_(std::move(old)) { bytes_.clear(); }
  void Byte(uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) Byte(static_cast<uint8_t>(value | 0x80));
    Byte(static_cast<uint8_t>(value));
  }
  void Zigzag(int64_t value) {
    Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Float64(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) Byte(static_cast<uint8_t>(bits >> shift));
  }
  void Text(std::string_view text) {
    Varint(text.size());
    for (char c : text) Byte(static_cast<uint8_t>(c));
  }
  void Bytes(std::span<const std::byte> bytes) {
    Varint(bytes.size());
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // The rest of the message.
  void Rest(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  static constexpr size_t kUsualBytes = 64;  // large enough for most messages in steady state

  std::vector<std::byte> bytes_;
};

// After the first failure, every read returns zero, so that a decoder only needs to check once at
// the end, and before it loops over a count.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // `reason` must be a literal; the first one is kept.
  void Fail(const char* reason) {
    if (reason_ == nullptr) reason_ = reason;
    bytes_ = {};
  }
  bool ok() const { return reason_ == nullptr; }
  const char* reason() const { return reason_; }
  size_t left() const { return bytes_.size(); }

  uint8_t Byte() {
    if (bytes_.empty()) {
      Fail("it is truncated");
      return 0;
    }
    const auto value = static_cast<uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = Byte();
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Fail("a number is too large");
    return 0;
  }
  // Reads a number of at most `limit`.
  uint64_t Varint(uint64_t limit) {
    const uint64_t value = Varint();
    if (value <= limit) return value;
    Fail("a number is out of range");
    return 0;
  }
  int64_t Zigzag() {
    const uint64_t value = Varint();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  int Int() {
    const int64_t value = Zigzag();
    if (value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max()) {
      return static_cast<int>(value);
    }
    Fail("a number is out of range");
    return 0;
  }
  double Float64() {
    uint64_t bits = 0;
    for (int shift = 0; shift < 64; shift += 8) bits |= uint64_t{Byte()} << shift;
    return std::bit_cast<double>(bits);
  }
  // Reads the number of following elements, each of at least `min_bytes`.
  size_t Count(size_t limit, size_t min_bytes) {
    const uint64_t count = Varint(limit);
    if (count <= left() / min_bytes) return static_cast<size_t>(count);
    Fail("a count is larger than the message");
    return 0;
  }
  std::string Text(size_t limit) {
    const size_t size = Count(limit, 1);
    std::string text(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return text;
  }
  // Like Bytes(), without a copy.
  std::span<const std::byte> View(size_t limit) {
    const size_t size = Count(limit, 1);
    const auto view = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return view;
  }
  std::vector<std::byte> Bytes(size_t limit) {
    const size_t size = Count(limit, 1);
    const std::vector<std::byte> bytes(bytes_.begin(),
                                       bytes_.begin() + static_cast<ptrdiff_t>(size));
    bytes_ = bytes_.subspan(size);
    return bytes;
  }
  // The remaining bytes, in place.
  std::span<const std::byte> Rest() { return std::exchange(bytes_, {}); }

 private:
  std::span<const std::byte> bytes_;
  const char* reason_ = nullptr;
};

}  // namespace horoscale
