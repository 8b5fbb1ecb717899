// Memory of a batch's encoded payloads: blocks that the next batch uses again.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace walle {

// Payloads of their own would be 1,000 allocations a transaction, whose pages malloc returns and the kernel clears each time.
class PayloadBlocks {
 public:
  static constexpr std::size_t kMaxPayloadBytes = 8192;

  // Returns memory for `size` bytes, kMaxPayloadBytes at most. It stays valid until pop, clear or the destructor.
  std::byte* push(std::size_t size);
  // Releases the latest memory, of `size` bytes.
  void pop(std::size_t size) noexcept;
  // Releases all, and keeps at most kKeptBlocks blocks.
  void clear() noexcept;
  // Takes the memory of `other`, which stays where it is.
  void take(PayloadBlocks& other);

 private:
  static constexpr std::size_t kBlockBytes = 64 << 10, kKeptBlocks = 32;
  struct Block {
    std::unique_ptr<std::byte[]> data;
    std::size_t used = 0;
  };

  std::vector<Block> blocks_;
  std::size_t open_ = 0;  // the number of blocks with payloads; those after it are empty
};

}  // namespace walle
