// Forecasts: what an operator will give, without computing it. Tracing a function needs the shapes and dtypes of its values, and
// only those elements that later shapes are made of.
#pragma once
#include "operators/step.h"

namespace walle {

// A value before running: its tensor where the elements are known; else a stand-in of its dtype and shape, one zero that is
// repeated. An input that is left out has no storage and is known.
struct Forecast {
  Tensor tensor;
  bool is_known = true;

  static Forecast unknown(DType dtype, Dims shape);
};

// Return the outputs of any operator of the registry that a session runs. Elements are computed where all inputs are known, or
// where the output does not depend on their elements (Shape). Throws Error (shape, dtype, unsupported, model), unsupported also
// where a shape depends on elements that are not known, and WorkStopped.
std::vector<Forecast> forecast(const OpDef& op, std::span<const Forecast> inputs, const Attributes& attributes, int outputs,
                               const Table& table);

}  // namespace walle
