// Heads of values in MessagePack: the one place that writes them, in the shortest form. walle.base.plain writes the same.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace walle::stream {

inline std::uint64_t swapped(std::uint64_t number) noexcept {
  return std::endian::native == std::endian::little ? __builtin_bswap64(number) : number;
}

inline std::uint8_t* store(std::uint8_t* out, std::uint64_t number, int bytes) noexcept {
  const std::uint64_t ordered = swapped(number << (64 - 8 * bytes));
  std::memcpy(out, &ordered, static_cast<std::size_t>(bytes));
  return out + bytes;
}

inline std::uint8_t* store(std::uint8_t* out, std::uint8_t head, std::uint64_t number, int bytes) noexcept {
  *out = head;
  return store(out + 1, number, bytes);
}

// All return the end of what they wrote.
inline constexpr std::size_t kMaxHeadBytes = 9;

inline std::uint8_t* write_large(std::uint8_t* out, std::uint64_t integer) noexcept {
  if (integer <= 0x7f) return store(out, integer, 1);
  if (integer <= 0xff) return store(out, 0xcc, integer, 1);
  if (integer <= 0xffff) return store(out, 0xcd, integer, 2);
  if (integer <= 0xffffffff) return store(out, 0xce, integer, 4);
  return store(out, 0xcf, integer, 8);
}

inline std::uint8_t* write_integer(std::uint8_t* out, std::int64_t integer) noexcept {
  const auto bits = static_cast<std::uint64_t>(integer);
  if (integer >= 0) return write_large(out, bits);
  if (integer >= -32) return store(out, bits, 1);
  if (integer >= -128) return store(out, 0xd0, bits, 1);
  if (integer >= -32768) return store(out, 0xd1, bits, 2);
  if (integer >= INT32_MIN) return store(out, 0xd2, bits, 4);
  return store(out, 0xd3, bits, 8);
}

inline std::uint8_t* write_real(std::uint8_t* out, double real) noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &real, 8);
  return store(out, 0xcb, bits, 8);
}

inline std::uint8_t* write_text_head(std::uint8_t* out, std::uint32_t bytes) noexcept {
  if (bytes < 32) return store(out, 0xa0 | bytes, 1);
  if (bytes <= 0xff) return store(out, 0xd9, bytes, 1);
  return bytes <= 0xffff ? store(out, 0xda, bytes, 2) : store(out, 0xdb, bytes, 4);
}

inline std::uint8_t* write_binary_head(std::uint8_t* out, std::uint32_t bytes) noexcept {
  if (bytes <= 0xff) return store(out, 0xc4, bytes, 1);
  return bytes <= 0xffff ? store(out, 0xc5, bytes, 2) : store(out, 0xc6, bytes, 4);
}

inline std::uint8_t* write_list_head(std::uint8_t* out, std::uint32_t items) noexcept {
  if (items < 16) return store(out, 0x90 | items, 1);
  return items <= 0xffff ? store(out, 0xdc, items, 2) : store(out, 0xdd, items, 4);
}

inline std::uint8_t* write_map_head(std::uint8_t* out, std::uint32_t pairs) noexcept {
  if (pairs < 16) return store(out, 0x80 | pairs, 1);
  return pairs <= 0xffff ? store(out, 0xde, pairs, 2) : store(out, 0xdf, pairs, 4);
}

}  // namespace walle::stream
