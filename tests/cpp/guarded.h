// Memory that ends where no page is mapped, so that a kernel that reads or writes a byte too far is killed.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace check {

// Floats that end at an unmapped page; an odd count of them begins unaligned.
class Guarded {
 public:
  explicit Guarded(std::size_t count) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    size_ = (count * sizeof(float) + page - 1) / page * page + page;
    base_ = static_cast<std::byte*>(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(base_ + size_ - page, page, PROT_NONE);
    data_ = reinterpret_cast<float*>(base_ + size_ - page) - count;
  }
  ~Guarded() { ::munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  float* data() const { return data_; }

 private:
  std::byte* base_;
  std::size_t size_;
  float* data_;
};

}  // namespace check
