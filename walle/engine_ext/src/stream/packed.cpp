#include "stream/packed.h"

#include <cmath>
#include <cstdlib>

namespace walle::stream {

namespace {

// Reads a big-endian number of `bytes` bytes, 1 to 8.
std::uint64_t load(const std::uint8_t* from, int bytes) noexcept {
  std::uint64_t number = 0;
  std::memcpy(&number, from, static_cast<std::size_t>(bytes));
  return swapped(number) >> (64 - 8 * bytes);
}

int compare_with_real(__int128 left, double right) noexcept {
  if (std::isnan(right)) return 2;
  if (right >= 0x1p64) return -1;
  if (right < -0x1p63) return 1;
  const auto whole = static_cast<__int128>(right);
  if (left != whole) return left < whole ? -1 : 1;
  const double rest = right - std::trunc(right);
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

__int128 whole_of(const Value& value) noexcept {
  return value.kind == Kind::large ? static_cast<__int128>(value.large) : static_cast<__int128>(value.integer);
}

}  // namespace

MemoryFunctions& memory_functions() noexcept {
  static MemoryFunctions functions{std::malloc, std::free};
  return functions;
}

int compare_numbers(const Value& left, const Value& right) noexcept {
  if (left.kind == Kind::real && right.kind == Kind::real) {
    if (std::isnan(left.real) || std::isnan(right.real)) return 2;
    return left.real < right.real ? -1 : left.real > right.real ? 1 : 0;
  }
  if (left.kind == Kind::real) {
    const int order = compare_with_real(whole_of(right), left.real);
    return order == 2 ? 2 : -order;
  }
  if (right.kind == Kind::real) return compare_with_real(whole_of(left), right.real);
  const __int128 a = whole_of(left), b = whole_of(right);
  return a < b ? -1 : a > b ? 1 : 0;
}

bool PackedReader::read_length(int bytes, std::uint32_t& length) noexcept {
  if (left() < static_cast<std::size_t>(bytes)) return false;
  length = static_cast<std::uint32_t>(load(data_ + at_, bytes));
  at_ += static_cast<std::size_t>(bytes);
  return true;
}

bool PackedReader::read_by_head(Value& value) noexcept {
  if (left() == 0) return false;
  const std::size_t head = at_;
  const std::uint8_t byte = data_[at_++];
  value.length = 0;
  if (byte <= 0x7f || byte >= 0xe0) {
    value.kind = Kind::integer;
    value.integer = static_cast<std::int8_t>(byte);
    return true;
  }
  if (byte <= 0x9f) {
    value.kind = byte <= 0x8f ? Kind::map : Kind::list;
    value.length = byte & 0x0f;
    value.place = head;
    return true;
  }
  const auto number = [&](int bytes) {
    if (left() < static_cast<std::size_t>(bytes)) return false;
    // A read of a fixed size, where there is room, takes no call.
    value.large = left() >= 8 ? load(data_ + at_, 8) >> (64 - 8 * bytes) : load(data_ + at_, bytes);
    at_ += static_cast<std::size_t>(bytes);
    return true;
  };
  switch (byte) {
    case 0xc0: value.kind = Kind::nil; return true;
    case 0xc2:
    case 0xc3:
      value.kind = Kind::boolean;
      value.integer = byte & 1;
      return true;
    case 0xc4:
    case 0xc5:
    case 0xc6: value.kind = Kind::binary; return read_length(1 << (byte - 0xc4), value.length) && take_body(value);
    case 0xc7:
    case 0xc8:
    case 0xc9:
      value.kind = Kind::extension;
      if (!read_length(1 << (byte - 0xc7), value.length) || left() == 0) return false;
      ++at_;
      return take_body(value);
    case 0xca: {
      value.kind = Kind::real;
      if (!number(4)) return false;
      const auto bits = static_cast<std::uint32_t>(value.large);
      float single = 0;
      std::memcpy(&single, &bits, 4);
      value.real = single;
      return true;
    }
    case 0xcb: {
      value.kind = Kind::real;
      if (!number(8)) return false;
      const std::uint64_t bits = value.large;
      std::memcpy(&value.real, &bits, 8);
      return true;
    }
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      if (!number(1 << (byte - 0xcc))) return false;
      value.kind = value.large > static_cast<std::uint64_t>(INT64_MAX) ? Kind::large : Kind::integer;
      return true;
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3: {
      value.kind = Kind::integer;
      const int bytes = 1 << (byte - 0xd0);
      if (!number(bytes)) return false;
      const int shift = 64 - 8 * bytes;
      value.integer = static_cast<std::int64_t>(value.large << shift) >> shift;
      return true;
    }
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
      value.kind = Kind::extension;
      value.length = std::uint32_t{1} << (byte - 0xd4);
      if (left() == 0) return false;
      ++at_;
      return take_body(value);
    case 0xd9:
    case 0xda:
    case 0xdb: value.kind = Kind::text; return read_length(1 << (byte - 0xd9), value.length) && take_body(value);
    case 0xdc:
    case 0xdd:
      value.kind = Kind::list;
      value.place = head;
      return read_length(2 << (byte - 0xdc), value.length);
    case 0xde:
    case 0xdf:
      value.kind = Kind::map;
      value.place = head;
      return read_length(2 << (byte - 0xde), value.length);
    default: return false;
  }
}

bool PackedReader::skip_by_head() noexcept {
  std::uint64_t outer[kMaxDepth];  // items left at the levels around
  int depth = 0;
  std::uint64_t items = 1;
  for (;;) {
    while (items == 0) {
      if (depth == 0) return true;
      items = outer[--depth];
    }
    --items;
    if (at_ >= size_) return false;
    const std::uint8_t body = kBodyBytes[data_[at_]];
    if (body != kReadHead) {
      if (left() <= body) return false;
      at_ += 1 + std::size_t{body};
      continue;
    }
    Value value;
    if (!read(value)) return false;
    if ((value.kind != Kind::list && value.kind != Kind::map) || value.length == 0) continue;
    if (depth == kMaxDepth) return false;
    outer[depth++] = items;
    items = std::uint64_t{value.length} * (value.kind == Kind::map ? 2 : 1);
  }
}

bool PackedReader::find(std::string_view key, std::uint32_t pairs) noexcept {
  for (std::string_view found; pairs != 0 && read_key(found); --pairs) {
    if (found.size() == key.size() && std::memcmp(found.data(), key.data(), key.size()) == 0) return true;
    if (!skip()) return false;
  }
  return false;
}

std::size_t count_values(const std::uint8_t* data, std::size_t size) noexcept {
  PackedReader reader(data, size);
  Value value;
  std::size_t values = 0;
  while (reader.left() > 0 && reader.read(value)) ++values;
  return values;
}

std::size_t count_characters(std::string_view text) noexcept {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

}  // namespace walle::stream
