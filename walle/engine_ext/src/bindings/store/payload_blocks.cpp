#include "bindings/store/payload_blocks.h"

#include <iterator>

namespace walle {

std::byte* PayloadBlocks::push(std::size_t size) {
  if (open_ == 0 || kBlockBytes - blocks_[open_ - 1].used < size) {
    if (open_ == blocks_.size()) blocks_.push_back({std::make_unique_for_overwrite<std::byte[]>(kBlockBytes)});
    ++open_;
  }
  Block& block = blocks_[open_ - 1];
  std::byte* data = block.data.get() + block.used;
  block.used += size;
  return data;
}

void PayloadBlocks::pop(std::size_t size) noexcept {
  Block& block = blocks_[open_ - 1];
  block.used -= size;
  if (block.used == 0) --open_;
}

void PayloadBlocks::clear() noexcept {
  for (Block& block : blocks_) block.used = 0;
  open_ = 0;
  if (blocks_.size() > kKeptBlocks) blocks_.resize(kKeptBlocks);
}

void PayloadBlocks::take(PayloadBlocks& other) {
  const auto at = blocks_.begin() + static_cast<std::ptrdiff_t>(open_);
  const auto end = other.blocks_.begin() + static_cast<std::ptrdiff_t>(other.open_);
  blocks_.insert(at, std::make_move_iterator(other.blocks_.begin()), std::make_move_iterator(end));
  open_ += other.open_;
  other.blocks_.erase(other.blocks_.begin(), end);
  other.open_ = 0;
}

}  // namespace walle
