// A tensor: shared storage seen through a dtype, a shape, strides and an offset. Copying a Tensor copies no element.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace walle {

using Dims = std::vector<std::int64_t>;

inline constexpr int kMaxAxes = 8;  // of a loop nest, and of a region after merging

// A run of bytes and the way to give it back. Owned memory is aligned to kAlignment and zero-padded to a multiple of it, so
// that a vector kernel may read a whole last vector; borrowed memory (a mapped file, another library's buffer) is neither.
class Storage {
 public:
  static constexpr std::size_t kAlignment = 64;

  static std::shared_ptr<Storage> allocate(std::size_t size_bytes);
  // `release` runs once, on whichever thread drops the last reference, and must not throw.
  static std::shared_ptr<Storage> borrow(void* data, std::size_t size_bytes, bool writable, std::function<void()> release);

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage();

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }
  bool writable() const noexcept { return writable_; }

 private:
  Storage(std::byte* data, std::size_t size_bytes, bool writable, std::function<void()> release)
      : data_(data), size_bytes_(size_bytes), writable_(writable), release_(std::move(release)) {}

  std::byte* data_;
  std::size_t size_bytes_;
  bool writable_;
  std::function<void()> release_;
};

// Bytes of engine memory that live storages own now, over the whole process (the VM's memory limit counts them).
std::size_t live_storage_bytes() noexcept;
// How many of them there may be at most, at first as many as the machine has: what asks for more gets std::bad_alloc, where the
// system would promise the memory and end the process when it is used.
std::size_t storage_limit() noexcept;
void limit_storage(std::size_t bytes) noexcept;

class Tensor {
 public:
  Tensor() = default;
  // A view of `storage`; strides and offset in elements. Throws Error where an element would lie outside the storage.
  Tensor(std::shared_ptr<Storage> storage, DType dtype, Dims shape, Dims strides, std::int64_t offset);

  // New contiguous memory, not initialised beyond its padding.
  static Tensor empty(DType dtype, Dims shape);

  DType dtype() const noexcept { return dtype_; }
  const Dims& shape() const noexcept { return shape_; }
  const Dims& strides() const noexcept { return strides_; }
  std::int64_t offset() const noexcept { return offset_; }
  int ndim() const noexcept { return static_cast<int>(shape_.size()); }
  std::int64_t size() const noexcept;
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }

  // Address of the first element; null only where there is no storage.
  std::byte* raw() const noexcept;
  template <class T>
  T* data() const noexcept {
    return reinterpret_cast<T*>(raw());
  }

  bool contiguous() const noexcept;

 private:
  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::f32;
  Dims shape_;
  Dims strides_;
  std::int64_t offset_ = 0;
};

// No tensor has more elements than this; sums and products of a few counts and item sizes then stay inside 63 bits.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

// Product of the dimensions; throws Error for a negative one, or where those that are not 0 give more than kMaxElements.
std::int64_t element_count(const Dims& shape);
// Of a shape that element_count takes; of another one they mean nothing, and are not to be used.
Dims contiguous_strides(const Dims& shape);
std::string to_string(const Dims& dims);

}  // namespace walle
