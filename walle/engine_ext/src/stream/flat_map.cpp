#include "stream/flat_map.h"

#include <utility>

namespace walle::stream {

void FlatMap::insert(std::uint64_t key, std::uint32_t value) {
  if (2 * (size_ + 1) > slots_.size()) {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 16 : 2 * slots_.size()));
    mask_ = slots_.size() - 1;
    size_ = 0;
    for (const Slot& slot : old)
      if (slot.key != 0) insert(slot.key, slot.value);
  }
  std::size_t at = home(key);
  while (slots_[at].key != 0) at = (at + 1) & mask_;
  slots_[at] = {key, value};
  ++size_;
}

void FlatMap::erase(std::uint64_t key) noexcept {
  std::size_t hole = home(key);
  while (slots_[hole].key != key) hole = (hole + 1) & mask_;
  // Later slots of the same run move up, so that no search stops at the hole before it reaches them.
  for (std::size_t at = (hole + 1) & mask_; slots_[at].key != 0; at = (at + 1) & mask_) {
    if (((at - home(slots_[at].key)) & mask_) < ((at - hole) & mask_)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {};
  --size_;
}

}  // namespace walle::stream
