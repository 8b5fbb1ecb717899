#include "vm/contiguous.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace walle::vm {

Tensor contiguous_copy(const Tensor& source) {
  Tensor copy = Tensor::empty(source.dtype(), source.shape());
  if (copy.size() == 0) return copy;
  const std::size_t item = item_size(source.dtype());
  if (source.contiguous()) {
    std::memcpy(copy.raw(), source.raw(), item * static_cast<std::size_t>(copy.size()));
    return copy;
  }
  std::byte* target = copy.raw();
  Dims index(source.shape().size(), 0);
  for (std::int64_t done = 0; done < copy.size(); ++done, target += item) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * source.strides()[axis];
    std::memcpy(target, source.raw() + offset * static_cast<std::int64_t>(item), item);
    for (std::size_t axis = index.size(); axis-- > 0 && ++index[axis] == source.shape()[axis];) index[axis] = 0;
  }
  return copy;
}

}  // namespace walle::vm
