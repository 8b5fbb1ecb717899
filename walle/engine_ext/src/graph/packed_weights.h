// Packed weights: constants in the layouts of algorithms, kept while any plan uses them, so that the sessions on one graph and
// the plans of one session share them.
#pragma once
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "core/fork_mutex.h"
#include "core/tensor.h"

namespace walle {

class PackedWeights {
 public:
  // Return the result of `make` for this constant and key (algorithm, parameter, backend, window); it is made at the first call.
  // Thread-safe: a thread that needs what another one makes waits for it. Nothing is locked meanwhile, because work and waiting
  // poll stops, and handlers of signals run there. Throws WorkStopped before it is made.
  Tensor get(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make);

 private:
  struct Entry {
    std::weak_ptr<Storage> source;  // owner of the key's address: another constant may be there later
    std::weak_ptr<Storage> packed;
    DType dtype = DType::f32;
    Dims shape;
  };

  using Key = std::tuple<const std::byte*, std::string>;
  // The thread that makes an entry. After a fork it does not exist in the child.
  using Maker = std::pair<std::thread::id, pid_t>;

  Tensor find(const Key& key, const Tensor& constant);

  ForkMutex mutex_;
  std::map<Key, Entry> entries_;
  std::map<Key, Maker> makers_;  // makers of the entries that are being made
};

}  // namespace walle
