// Memory of the trie's child tables: blocks of slots in one array, each with a power of two of slots.
#pragma once
#include <array>

#include "stream/condition.h"

namespace walle::stream {

// An empty slot has id kUnknown and child 0.
struct ChildSlot {
  Id id = kUnknown;
  std::uint32_t child = 0;
};

class ChildSlots {
 public:
  // Returns the first slot of an empty block of 2**log2 slots.
  std::uint32_t allocate(unsigned log2);
  void release(std::uint32_t first, unsigned log2) noexcept;
  ChildSlot& operator[](std::uint32_t index) noexcept { return slots_[index]; }
  const ChildSlot& operator[](std::uint32_t index) const noexcept { return slots_[index]; }

 private:
  std::vector<ChildSlot> slots_ = std::vector<ChildSlot>(1);  // slot 0 is empty always: the block of nodes without children
  std::array<std::vector<std::uint32_t>, 32> free_;           // by log2
};

}  // namespace walle::stream
