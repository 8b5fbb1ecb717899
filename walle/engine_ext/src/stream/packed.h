// Values of plain data in MessagePack (docs/adr/0002-folders-layers-and-plain-data.md): read in place, without building objects.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "stream/memory.h"
#include "stream/packed_heads.h"

namespace walle::stream {

inline constexpr int kMaxDepth = 100;  // containers in containers, as a VM takes

enum class Kind : std::uint8_t { missing, nil, boolean, integer, large, real, text, binary, list, map, extension };

// A value, or the place of one. `large` is an integer above 2^63 - 1.
struct Value {
  Kind kind = Kind::missing;
  std::uint32_t length = 0;  // bytes of text and binary, items of a list, pairs of a map
  union {
    std::int64_t integer = 0;  // boolean too
    std::uint64_t large;
    double real;
    std::uint64_t place;  // first byte of text and binary, or of the head of a container
  };

  bool is_number() const noexcept { return kind == Kind::integer || kind == Kind::real || kind == Kind::large; }
  bool is_present() const noexcept { return kind != Kind::missing && kind != Kind::nil; }
};

inline Value integer_value(std::int64_t integer) noexcept {
  Value value;
  value.kind = Kind::integer;
  value.integer = integer;
  return value;
}

// Orders numbers exactly, integers against reals too. Returns -1, 0 or 1; 2 where one of them is NaN.
int compare_numbers(const Value& left, const Value& right) noexcept;

inline constexpr std::uint8_t kReadHead = 0xff;

// By head: the bytes that follow it, where the head alone says how many; kReadHead otherwise.
inline constexpr auto kBodyBytes = [] {
  std::array<std::uint8_t, 256> bytes{};
  for (int head = 0x80; head <= 0x9f; ++head) bytes[head] = kReadHead;
  for (int head = 0xa0; head <= 0xbf; ++head) bytes[head] = static_cast<std::uint8_t>(head & 0x1f);
  for (int head = 0xc1; head <= 0xdf; ++head) bytes[head] = kReadHead;
  bytes[0xc2] = bytes[0xc3] = 0;
  for (const auto& [head, body] :
       {std::pair{0xca, 4}, {0xcb, 8}, {0xcc, 1}, {0xcd, 2}, {0xce, 4}, {0xcf, 8}, {0xd0, 1}, {0xd1, 2}, {0xd2, 4}, {0xd3, 8}})
    bytes[head] = static_cast<std::uint8_t>(body);
  return bytes;
}();

// A position in bytes that may be damaged or hostile: nothing is read beyond `size`.
class PackedReader {
 public:
  PackedReader(const std::uint8_t* data, std::size_t size, std::size_t at = 0) noexcept : data_(data), size_(size), at_(at) {}

  // Reads the next head, and the body of text, binary and extension; a container's items follow. False where the bytes are not
  // MessagePack.
  bool read(Value& value) noexcept {
    if (at_ < size_ && (data_[at_] & 0xe0) == 0xa0) {  // text of less than 32 bytes
      value.kind = Kind::text;
      value.length = data_[at_++] & 0x1f;
      return take_body(value);
    }
    return read_by_head(value);
  }
  // Skips the next value with all that is in it. False where the bytes are damaged or nested deeper than kMaxDepth.
  bool skip() noexcept {
    if (at_ >= size_) return false;
    const std::uint8_t body = kBodyBytes[data_[at_]];
    if (body == kReadHead) return skip_by_head();
    if (left() <= body) return false;
    at_ += 1 + std::size_t{body};
    return true;
  }
  // Moves to the value of the key, of a map of which this many pairs follow; false where it does not have the key.
  bool find(std::string_view key, std::uint32_t pairs) noexcept;
  // Reads a key of a map. False where the bytes are damaged, or the key is not text.
  bool read_key(std::string_view& key) noexcept {
    if (at_ < size_ && data_[at_] >= 0xa0 && data_[at_] <= 0xbf) {  // text of less than 32 bytes
      const std::size_t length = data_[at_] & 0x1f;
      if (left() <= length) return false;
      key = {reinterpret_cast<const char*>(data_) + at_ + 1, length};
      at_ += 1 + length;
      return true;
    }
    Value text;
    if (!read(text) || text.kind != Kind::text) return false;
    key = {reinterpret_cast<const char*>(data_) + text.place, text.length};
    return true;
  }
  std::size_t at() const noexcept { return at_; }
  std::size_t left() const noexcept { return size_ - at_; }

 private:
  bool skip_by_head() noexcept;
  bool read_by_head(Value& value) noexcept;
  bool read_length(int bytes, std::uint32_t& length) noexcept;
  bool take_body(Value& value) noexcept {
    if (left() < value.length) return false;
    value.place = at_;
    at_ += value.length;
    return true;
  }

  const std::uint8_t* data_;
  std::size_t size_, at_;
};

// Returns the number of values that the bytes hold, those in containers too, up to where they are not MessagePack.
std::size_t count_values(const std::uint8_t* data, std::size_t size) noexcept;

// Returns the number of characters of UTF-8 text.
std::size_t count_characters(std::string_view text) noexcept;

}  // namespace walle::stream
