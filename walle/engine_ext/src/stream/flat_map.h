// Hash map from 64-bit keys to 32-bit numbers: open addressing with linear probing in one array.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace walle::stream {

// Key 0 is reserved, and value 0 is what a missing key has.
class FlatMap {
 public:
  std::uint32_t find(std::uint64_t key) const noexcept {
    if (slots_.empty()) return 0;
    for (std::size_t at = home(key);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.value;
      if (slot.key == 0) return 0;
    }
  }
  // The key must be missing.
  void insert(std::uint64_t key, std::uint32_t value);
  // The key must be present.
  void erase(std::uint64_t key) noexcept;
  // Calls `visit` with each key and its value, in no order.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (slot.key != 0) visit(slot.key, slot.value);
  }
  std::size_t size() const noexcept { return size_; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t value = 0;
  };
  std::size_t home(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ull) >> 32) & mask_;
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t mask_ = 0, size_ = 0;
};

}  // namespace walle::stream
