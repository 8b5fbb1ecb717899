#include "vm/contiguous.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace walle::vm {

void copy_elements(const Tensor& source, std::byte* target) {
  if (source.size() == 0) return;
  const std::size_t item = item_size(source.dtype());
  // The innermost axes that lie densely are copied as a run.
  std::size_t outer = source.shape().size();
  std::int64_t run = 1;
  while (outer > 0 && (source.shape()[outer - 1] == 1 || source.strides()[outer - 1] == run)) run *= source.shape()[--outer];
  const std::size_t run_bytes = item * static_cast<std::size_t>(run);
  Dims index(outer, 0);
  for (std::int64_t done = 0; done < source.size(); done += run, target += run_bytes) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < outer; ++axis) offset += index[axis] * source.strides()[axis];
    std::memcpy(target, source.raw() + offset * static_cast<std::int64_t>(item), run_bytes);
    for (std::size_t axis = outer; axis-- > 0 && ++index[axis] == source.shape()[axis];) index[axis] = 0;
  }
}

Tensor contiguous_copy(const Tensor& source) {
  Tensor copy = Tensor::empty(source.dtype(), source.shape());
  copy_elements(source, copy.raw());
  return copy;
}

}  // namespace walle::vm
