#include "stream/child_slots.h"

#include <algorithm>

namespace walle::stream {

std::uint32_t ChildSlots::allocate(unsigned log2) {
  std::vector<std::uint32_t>& free = free_[log2];
  if (!free.empty()) {
    const std::uint32_t first = free.back();
    free.pop_back();
    return first;
  }
  const std::size_t first = slots_.size();
  slots_.resize(first + (std::size_t{1} << log2));
  free.reserve(slots_.size() >> log2);  // so that `release` never allocates
  return static_cast<std::uint32_t>(first);
}

void ChildSlots::release(std::uint32_t first, unsigned log2) noexcept {
  std::fill_n(slots_.begin() + first, std::size_t{1} << log2, ChildSlot());
  free_[log2].push_back(first);
}

}  // namespace walle::stream
