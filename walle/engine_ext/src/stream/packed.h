// Values of plain data in MessagePack (docs/adr/0003-plain-data.md): read in place, without building objects.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "stream/memory.h"

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
    std::uint64_t place;  // of the first byte of text and binary, of the head of a container
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

// A position in bytes that may be damaged or hostile: nothing is read beyond `size`.
class PackedReader {
 public:
  PackedReader(const std::uint8_t* data, std::size_t size, std::size_t at = 0) noexcept : data_(data), size_(size), at_(at) {}

  // Reads the next head, and the body of text, binary and extension; a container's items follow. False where the bytes are not
  // MessagePack.
  bool read(Value& value) noexcept;
  // Skips the next value with all that is in it. False where the bytes are damaged or nested deeper than kMaxDepth.
  bool skip() noexcept;
  // Moves to the value of the key, of a map of which this many pairs follow; false where it does not have the key.
  bool find(std::string_view key, std::uint32_t pairs) noexcept;
  std::size_t at() const noexcept { return at_; }
  std::size_t left() const noexcept { return size_ - at_; }

 private:
  bool read_length(int bytes, std::uint32_t& length) noexcept;
  bool take_body(Value& value) noexcept;

  const std::uint8_t* data_;
  std::size_t size_, at_;
};

// Writers of heads, in the shortest form, as walle.plain has them. They return the end of what they wrote, at most 9 bytes.
std::uint8_t* write_integer(std::uint8_t* out, std::int64_t integer) noexcept;
std::uint8_t* write_large(std::uint8_t* out, std::uint64_t integer) noexcept;
std::uint8_t* write_real(std::uint8_t* out, double real) noexcept;
std::uint8_t* write_text_head(std::uint8_t* out, std::uint32_t bytes) noexcept;
std::uint8_t* write_binary_head(std::uint8_t* out, std::uint32_t bytes) noexcept;
std::uint8_t* write_list_head(std::uint8_t* out, std::uint32_t items) noexcept;
std::uint8_t* write_map_head(std::uint8_t* out, std::uint32_t pairs) noexcept;
inline constexpr std::size_t kMaxHeadBytes = 9;

// Returns the number of characters of UTF-8 text.
std::size_t count_characters(std::string_view text) noexcept;

}  // namespace walle::stream
