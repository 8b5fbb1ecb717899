#include "core/blocks.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>  // whose macros are empty without the sanitizer
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes)
#endif

namespace walle {

namespace {

// Large memory in large pages, where the system has them on offer: weights are read from end to end in every run, and a first
// touch of 2 MiB at once makes loading quicker.
constexpr std::size_t kLargePage = std::size_t{2} << 20, kLargeBytes = 2 * kLargePage;
// Smaller blocks stay in the allocator's own lists.
constexpr std::size_t kLeastSpare = std::size_t{16} << 10;

std::byte* take_large(std::size_t bytes) noexcept {
#if defined(__linux__)
  void* data = std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage);
  if (data != nullptr) ::madvise(data, bytes, MADV_HUGEPAGE);  // advice only
  return static_cast<std::byte*>(data);
#else
  return nullptr;
#endif
}

// Smaller memory by malloc and a shift: a block that aligned_alloc gives back seldom fits the next request of its size.
Block take_new(std::size_t bytes) noexcept {
  if (bytes >= kLargeBytes)
    if (std::byte* data = take_large(bytes)) return {data, data, bytes};
  void* base = std::malloc(bytes + kBlockAlignment);
  if (base == nullptr) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  const std::uintptr_t first = (address + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  return {base, static_cast<std::byte*>(base) + (first - address), bytes};
}

// Set when the thread's spare blocks are gone, after which other objects of the thread may still give blocks back.
thread_local bool over = false;

class Spares {
 public:
  Spares() = default;
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;
  ~Spares() {
    over = true;
    clear();
  }

  std::size_t clear() noexcept {
    const std::size_t freed = bytes_;
    while (count_ > 0) free_oldest();
    return freed;
  }
  // The newest that is large enough and at most a quarter larger; none: no data.
  Block take(std::size_t bytes) noexcept {
    for (std::size_t i = count_; i-- > 0;)
      if (blocks_[i].size_bytes >= bytes && blocks_[i].size_bytes - bytes <= bytes / 4) {
        ASAN_UNPOISON_MEMORY_REGION(blocks_[i].data, bytes);
        return remove(i);
      }
    return {};
  }
  // In place of the oldest ones, where there are too many.
  void keep(const Block& block) noexcept {
    while (count_ == kMostSpareBlocks || (count_ > 0 && bytes_ + block.size_bytes > kMostSpareBytes)) free_oldest();
    ASAN_POISON_MEMORY_REGION(block.data, block.size_bytes);
    blocks_[count_++] = block;
    bytes_ += block.size_bytes;
  }

 private:
  void free_oldest() noexcept {
    const Block block = remove(0);
    ASAN_UNPOISON_MEMORY_REGION(block.data, block.size_bytes);
    std::free(block.base);
  }
  Block remove(std::size_t at) noexcept {
    const Block block = blocks_[at];
    for (--count_; at < count_; ++at) blocks_[at] = blocks_[at + 1];
    bytes_ -= block.size_bytes;
    return block;
  }

  std::array<Block, kMostSpareBlocks> blocks_;
  std::size_t count_ = 0, bytes_ = 0;
};

Spares& spares() noexcept {
  thread_local Spares here;
  return here;
}

}  // namespace

Block take_block(std::size_t size_bytes) noexcept {
  if (size_bytes >= kLeastSpare && size_bytes <= kMostSpareBytes && !over)
    if (const Block spare = spares().take(size_bytes); spare.data != nullptr) return spare;
  return take_new(size_bytes);
}

void give_back(const Block& block) noexcept {
  if (block.size_bytes >= kLeastSpare && block.size_bytes <= kMostSpareBytes && !over)
    spares().keep(block);
  else
    std::free(block.base);
}

std::size_t free_spare_blocks() noexcept { return over ? 0 : spares().clear(); }

}  // namespace walle
