// Buffers that end at an unmapped page, so that a kernel that reads or writes a byte too far is killed.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace check {

// Bytes that end at an unmapped page.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<std::byte*>(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(base_ + size_ - page, page, PROT_NONE);
    data_ = base_ + size_ - page - bytes;
  }
  ~GuardedBytes() { ::munmap(base_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_, size_;
  std::byte *base_, *data_;
};

// Floats that end at an unmapped page; with an odd count the first one is unaligned.
class Guarded {
 public:
  explicit Guarded(std::size_t count) : bytes_(count * sizeof(float)) {}
  float* data() const { return reinterpret_cast<float*>(bytes_.data()); }

 private:
  GuardedBytes bytes_;
};

}  // namespace check
