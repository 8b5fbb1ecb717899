// Packed weights: constants in the layouts of algorithms, kept while any plan uses them, so that the sessions on one graph and
// the plans of one session share them.
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
  // Return the result of `make` for this constant and key (algorithm, parameter, backend, window); it is made at the first call.
  // Thread-safe. Throws WorkStopped before it is made.
  Tensor get(const Tensor& constant, const std::string& key, const std::function<Tensor()>& make);

 private:
  struct Entry {
    std::weak_ptr<Storage> source;  // whose address the key holds: another constant may lie there later
    std::weak_ptr<Storage> packed;
    DType dtype = DType::f32;
    Dims shape;
  };

  ForkMutex mutex_;
  std::map<std::tuple<const std::byte*, std::string>, Entry> entries_;
};

}  // namespace walle
