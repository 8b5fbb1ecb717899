// Memory that is released at once: many small arrays of one computation without an allocation for each.
#pragma once
#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

#include "stream/memory.h"

namespace walle::stream {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Returns items with their initial values, which stay valid as long as the scratch. Throws std::bad_alloc.
  template <typename T>
  std::span<T> take(std::size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlignment);
    if (count == 0) return {};
    if (count > PTRDIFF_MAX / sizeof(T)) throw std::bad_alloc();
    auto* items = reinterpret_cast<T*>(bytes(count * sizeof(T)));
    for (std::size_t i = 0; i < count; ++i) ::new (static_cast<void*>(items + i)) T;
    return {items, count};
  }

 private:
  static constexpr std::size_t kAlignment = 16, kBlockBytes = 16 << 10;
  struct alignas(kAlignment) Unit {
    std::byte bytes[kAlignment];
  };

  void* bytes(std::size_t size) {
    const std::size_t units = (size + kAlignment - 1) / kAlignment;
    if (left_ < units) {
      const std::size_t made = std::max(units, kBlockBytes / kAlignment);
      blocks_.emplace_back(made);
      next_ = blocks_.back().data();
      left_ = made;
    }
    left_ -= units;
    return std::exchange(next_, next_ + units);
  }

  Vector<Vector<Unit>> blocks_;
  Unit* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace walle::stream
