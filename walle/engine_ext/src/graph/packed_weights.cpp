#include "graph/packed_weights.h"
#include "core/stop.h"

namespace walle {

Tensor PackedWeights::get(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make) {
  const std::lock_guard lock(mutex_);
  // A file may have constants of several shapes and types at one address.
  const std::string whole_key = key + " of " + std::string(dtype_name(constant.dtype())) + " " + to_string(constant.shape());
  Entry& entry = entries_[{constant.raw(), whole_key}];
  if (entry.source.lock() == constant.storage())
    if (auto storage = entry.packed.lock())
      return Tensor(std::move(storage), entry.dtype, entry.shape, contiguous_strides(entry.shape), 0);
  throw_if_stopped();
  Tensor made = make();
  entry = {constant.storage(), made.storage(), made.dtype(), made.shape()};
  std::erase_if(entries_, [](const auto& item) { return item.second.packed.expired(); });
  return made;
}

}  // namespace walle
