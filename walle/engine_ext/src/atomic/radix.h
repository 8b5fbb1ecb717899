// Sorting by digits: elements become unsigned keys of the same order, which are distributed by 8 or 11 bits at a time from the
// lowest. Stable; NaN is the greatest.
#pragma once
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/small_float.h"
#include "core/stop.h"

namespace walle {

template <class T>
using RadixKey = std::conditional_t<
    sizeof(T) == 1, std::uint8_t,
    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;

template <class T>
inline constexpr bool kFloatKey = !std::is_integral_v<T>;

// Of floats: positive ones get the sign bit, negative ones are inverted, so that the bits order as the numbers do.
template <class T>
RadixKey<T> radix_key(T value) noexcept {
  using Key = RadixKey<T>;
  constexpr Key kSign = static_cast<Key>(Key{1} << (8 * sizeof(T) - 1));
  const Key bits = std::bit_cast<Key>(value);
  if constexpr (kFloatKey<T>) {
    if (value != value) return static_cast<Key>(~Key{0});
    return static_cast<Key>(bits & kSign ? ~bits : bits | kSign);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<Key>(bits ^ kSign);
  } else {
    return bits;
  }
}
template <class T>
T radix_value(RadixKey<T> key) noexcept {
  using Key = RadixKey<T>;
  constexpr Key kSign = static_cast<Key>(Key{1} << (8 * sizeof(T) - 1));
  if constexpr (kFloatKey<T>)
    return std::bit_cast<T>(static_cast<Key>(key & kSign ? key ^ kSign : ~key));
  else if constexpr (std::is_signed_v<T>)
    return std::bit_cast<T>(static_cast<Key>(key ^ kSign));
  else
    return std::bit_cast<T>(key);
}

struct RadixPair {
  std::uint64_t key, place;
};
template <class T>
using RadixItem =
    std::conditional_t<sizeof(T) <= 4, std::uint64_t, RadixPair>;  // 32 bits of key above 32 of place, or both whole

inline constexpr int kWideDigit = 11;
inline constexpr std::size_t kRadixCounts = std::size_t{8} << kWideDigit;  // counts of at most eight digits at once

template <class T>
std::size_t radix_scratch_bytes(std::int64_t count, bool places) noexcept {
  const std::size_t item = places ? sizeof(RadixItem<T>) : sizeof(RadixKey<T>);
  const std::size_t buffer = (2 * static_cast<std::size_t>(count) * item + 63) / 64 * 64;
  return buffer + kRadixCounts * sizeof(std::uint32_t);
}

// Elements whose time moving an item to its place among those of its digit takes: a miss of the cache.
inline constexpr std::int64_t kScattered = 4;

// Distributes `from` by the digits of digit(item, shift) until they are all sorted; returns the buffer they lie in at last. Once
// `poll` is stopped, they are not sorted.
template <int kDigit, int kBits, class Item, class Digits>
Item* distribute(Item* from, Item* to, std::int64_t count, std::uint32_t* counts, StopPoll& poll, Digits&& digits) noexcept {
  constexpr int kPasses = (kBits + kDigit - 1) / kDigit;
  constexpr std::uint32_t kMask = (1u << kDigit) - 1;
  std::memset(counts, 0, (std::size_t{kPasses} << kDigit) * sizeof(std::uint32_t));
  run_in_blocks(count, kPasses, poll, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto key = digits(from[i]);
      for (int pass = 0; pass < kPasses; ++pass) ++counts[(pass << kDigit) + ((key >> (pass * kDigit)) & kMask)];
    }
  });
  for (int pass = 0; pass < kPasses; ++pass) {
    std::uint32_t* starts = counts + (pass << kDigit);
    if (starts[(digits(from[0]) >> (pass * kDigit)) & kMask] == count) continue;  // one digit for all
    std::uint32_t total = 0;
    for (std::uint32_t digit = 0; digit <= kMask; ++digit) {
      const std::uint32_t here = starts[digit];
      starts[digit] = total;
      total += here;
    }
    const bool is_whole = run_in_blocks(count, kScattered, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) to[starts[(digits(from[i]) >> (pass * kDigit)) & kMask]++] = from[i];
    });
    if (!is_whole) break;
    std::swap(from, to);
  }
  return from;
}

template <int kBits, class Item, class Digits>
Item* distribute(Item* from, Item* to, std::int64_t count, std::uint32_t* counts, StopPoll& poll, Digits&& digits) noexcept {
  constexpr std::int64_t kMany = 1 << 14;  // count from which wider digits pay for their longer tables
  if (kBits > 16 && count >= kMany) return distribute<kWideDigit, kBits>(from, to, count, counts, poll, digits);
  return distribute<8, kBits>(from, to, count, counts, poll, digits);
}

// Calls put(i, value) for the i-th of in[k * stride], k < count, in ascending (or descending) order, until `poll` is stopped.
template <class T, class Put>
void radix_sort(const T* in, std::int64_t stride, std::int64_t count, bool descending, std::byte* scratch, StopPoll& poll,
                Put&& put) noexcept {
  using Key = RadixKey<T>;
  auto* keys = reinterpret_cast<Key*>(scratch);
  const std::size_t buffer = (2 * static_cast<std::size_t>(count) * sizeof(Key) + 63) / 64 * 64;
  run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) keys[i] = radix_key(in[i * stride]);
  });
  const Key* sorted = distribute<8 * sizeof(T)>(keys, keys + count, count, reinterpret_cast<std::uint32_t*>(scratch + buffer),
                                                poll, [](Key key) noexcept { return key; });
  run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) put(i, radix_value<T>(sorted[descending ? count - 1 - i : i]));
  });
}

// Calls put(i, k) until `poll` is stopped: the i-th of in[k * stride] in order is the k-th; equal elements keep their order.
// count < 2^32.
template <class T, class Put>
void radix_order(const T* in, std::int64_t stride, std::int64_t count, bool descending, std::byte* scratch, StopPoll& poll,
                 Put&& put) noexcept {
  using Item = RadixItem<T>;
  auto* items = reinterpret_cast<Item*>(scratch);
  const std::size_t buffer = (2 * static_cast<std::size_t>(count) * sizeof(Item) + 63) / 64 * 64;
  auto* counts = reinterpret_cast<std::uint32_t*>(scratch + buffer);
  const auto key_of = [&](std::int64_t i) noexcept {
    RadixKey<T> key = radix_key(in[i * stride]);
    if constexpr (kFloatKey<T>)  // -0.0 and 0.0 are equal
      if (key == radix_key(T(-0.0f))) key = radix_key(T(0.0f));
    return descending ? static_cast<RadixKey<T>>(~key) : key;
  };
  if constexpr (sizeof(T) <= 4) {
    run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i)
        items[i] = (static_cast<std::uint64_t>(key_of(i)) << 32) | static_cast<std::uint64_t>(i);
    });
    const Item* sorted = distribute<8 * sizeof(T)>(items, items + count, count, counts, poll,
                                                   [](Item item) noexcept { return static_cast<std::uint32_t>(item >> 32); });
    run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) put(i, static_cast<std::int64_t>(sorted[i] & 0xffffffffu));
    });
  } else {
    run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) items[i] = {key_of(i), static_cast<std::uint64_t>(i)};
    });
    const Item* sorted =
        distribute<8 * sizeof(T)>(items, items + count, count, counts, poll, [](Item item) noexcept { return item.key; });
    run_in_blocks(count, 1, poll, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) put(i, static_cast<std::int64_t>(sorted[i].place));
    });
  }
}

}  // namespace walle
