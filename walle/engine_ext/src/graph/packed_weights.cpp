#include "graph/packed_weights.h"

#include <unistd.h>

#include <chrono>

#include "core/stop.h"

namespace walle {

Tensor PackedWeights::find(const Key& key, const Tensor& constant) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.source.lock() != constant.storage()) return {};
  const Entry& entry = found->second;
  auto storage = entry.packed.lock();
  return storage ? Tensor(std::move(storage), entry.dtype, entry.shape, contiguous_strides(entry.shape), 0) : Tensor();
}

Tensor PackedWeights::get(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make) {
  // A file may have constants of several shapes and types at one address.
  const Key whole_key{constant.raw(),
                      key + " of " + std::string(dtype_name(constant.dtype())) + " " + to_string(constant.shape())};
  const Maker self{std::this_thread::get_id(), ::getpid()};
  bool is_nested = false;
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    {
      const std::lock_guard lock(mutex_);
      if (Tensor found = find(whole_key, constant); found.storage() != nullptr) return found;
      const auto [maker, is_first] = makers_.try_emplace(whole_key, self);
      is_nested = !is_first && maker->second == self;
      const bool has_ended = maker->second.second != self.second;  // the maker is a thread of the process that forked
      if (has_ended) maker->second = self;
      if (is_first || is_nested || has_ended) break;
    }
    throw_if_stopped();
  }
  if (is_nested) return make();  // a signal's handler, which runs while this thread makes the entry

  struct End {
    PackedWeights& weights;
    const Key& key;
    ~End() {
      const std::lock_guard lock(weights.mutex_);
      weights.makers_.erase(key);
    }
  } const end{*this, whole_key};
  throw_if_stopped();
  Tensor made = make();
  const std::lock_guard lock(mutex_);
  entries_[whole_key] = {constant.storage(), made.storage(), made.dtype(), made.shape()};
  std::erase_if(entries_, [](const auto& item) { return item.second.packed.expired(); });
  return made;
}

}  // namespace walle
