// Packed weights: what algorithms made of a model's constants, kept while any plan uses them, so that sessions on one graph, and
// the plans of one session, share them.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "core/fork_mutex.h"
#include "core/tensor.h"

namespace walle {

class PackedWeights {
 public:
  // What `make` gives for this constant under this key (algorithm, parameter, backend, window), made at the first asking.
  // Thread-safe.
  Tensor get(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make);

 private:
  struct Entry {
    std::weak_ptr<Storage> source;  // whose address the key holds: another constant may lie there later
    std::weak_ptr<Storage> packed;
    Dims shape;
  };

  ForkMutex mutex_;
  std::map<std::tuple<const std::byte*, std::string>, Entry> entries_;
};

}  // namespace walle
