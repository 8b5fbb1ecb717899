// Costs of a program's convolutions and changes of layout by the performance model of an instruction set
// (search/performance_model.h).
#pragma once
#include <map>

#include "host/host_selection.h"
#include "search/model_registry.h"

namespace walle {

// Return the cost by rates of a change between the plain form of a float32 value of this shape and its packed one.
double change_by_rates_us(const Dims& plain, const Packing& packing, const Rates& rates);

// Predictions of all layers and values of a program, made in one batch. There are none without a model of the instruction set
// and where it covers no convolution.
class LearnedCosts {
 public:
  // `rates` are those of the program (host/work.h).
  LearnedCosts(const Program& program, const Table& table, const Packing& packing, const Rates& rates);

  // Replaces the costs by rates of an op of the program, where the model covers its layer and knows a primitive of it. Another
  // primitive's cost becomes that by rates, multiplied by the median ratio of model to rates, so that all can be compared.
  void replace(const ProgramOp& op, Alternatives& found) const;
  // Return the cost of a value's change to a form. One that the model does not cover costs `rates_us` times change_ratio().
  double change_us(int value, Form to, double rates_us) const;
  // Return the median ratio of model to rates of the changes, 1 where there are none.
  double change_ratio() const noexcept { return change_ratio_; }

 private:
  // Return the row of predictions of a layer, a new one at its first use; -1 for a layer that the model does not cover.
  int row_of(const std::optional<ConvLayer>& layer);
  // Return a prediction; NaN for row -1 and a primitive that the model does not have.
  double predicted_us(int row, const std::string& primitive) const;
  double change_ratio_of(const Packing& packing, const Rates& rates) const;

  const Program& program_;
  std::shared_ptr<const PerformanceModel> model_;
  std::map<std::array<double, 5>, int> rows_;
  std::vector<ConvLayer> layers_;  // by row
  std::vector<int> ops_, values_;  // rows by op and by value, -1 for none; empty where no convolution has a row
  std::vector<float> us_;          // [row][primitive]
  double change_ratio_ = 1;
};

}  // namespace walle
