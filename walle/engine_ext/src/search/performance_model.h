// Performance model: predicted microseconds of the primitives of convolution layers (Mulder et al., §4.2). It is trained in
// Python (walle/engine_ext/search/performance_model.py), and evaluated here, because every session plans with it.
#pragma once
#include <cstdint>
#include <limits>
#include <string_view>

#include "search/layer_features.h"

namespace walle {

// A network of ReLUs plus a linear function, both of normalised features, gives logarithms of times. Immutable, so that threads
// may share it.
class PerformanceModel {
 public:
  // Reads what portable_model.py wrote, which may come from anywhere. Throws Error (backend), with the reason, for bytes that are
  // not a whole model of this engine's features or have numbers that are not finite.
  explicit PerformanceModel(std::string_view bytes);

  // Names of primitives, "winograd(4)" for an algorithm with its parameter: the columns of predict().
  const std::vector<std::string>& primitives() const noexcept { return primitives_; }
  // Return whether each number of the layer is within the range of the samples.
  bool covers(const ConvLayer& layer) const noexcept;
  // Return microseconds [layer][primitive] of all layers in one batch. A number that is not a time, such as one beyond float32's
  // range, is NaN. Each number of a layer is at least 1.
  std::vector<float> predict(std::span<const ConvLayer> layers) const;

  // The bytes from which it was read, to hand it to another process.
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  struct Dense {
    std::size_t rows = 0, columns = 0;
    std::vector<float> weight, bias;  // [row][column], [column]

    // Adds x @ weight to `out` [count][columns].
    void add_product(const std::vector<float>& x, std::size_t count, std::vector<float>& out) const;
  };

  std::string bytes_;
  ConvLayer least_, most_;  // range of the samples
  std::vector<std::string> primitives_;
  std::vector<double> mean_, factor_;  // normalisation of the features
  Dense linear_;
  std::vector<Dense> layers_;
};

}  // namespace walle
