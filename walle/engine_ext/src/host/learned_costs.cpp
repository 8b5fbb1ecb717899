#include "host/learned_costs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "graph/index.h"
#include "host/problems.h"
#include "host/work.h"

namespace walle {

namespace {

// Return the layer of a convolution as it was profiled; nothing for one with groups, a batch, dilations, or that is not square.
std::optional<ConvLayer> profiled_layer(const ConvProblem& problem) {
  const ConvShape& shape = problem.shape;
  const Window& window = shape.window;
  const auto square = [](const Window::Axes& axes) { return axes[1] == axes[2]; };
  const std::int64_t size = window.in[2], stride = window.stride[2];
  if (!problem.packable || window.rank != 2 || shape.batch != 1 || shape.groups != 1 || shape.in_channels < 1 ||
      shape.out_channels < 1 || size < 1 || !square(window.in) || !square(window.kernel) || !square(window.stride) ||
      !square(window.out) || window.out[2] != (size + stride - 1) / stride || window.dilation[1] != 1 || window.dilation[2] != 1)
    return std::nullopt;
  return ConvLayer{static_cast<double>(shape.out_channels), static_cast<double>(shape.in_channels), static_cast<double>(size),
                   static_cast<double>(stride), static_cast<double>(window.kernel[2])};
}

// Return the layer whose input was profiled for changes of a value's layout; nothing for a value of another kind. The times of
// changes depend on channels and pixels alone.
std::optional<ConvLayer> changed_layer(const ProgramValue& value) {
  const Dims& shape = value.shape;
  if (value.is_constant() || value.dtype != DType::f32 || shape.size() != 4 || shape[0] != 1 || shape[1] < 1 || shape[2] < 1 ||
      shape[2] != shape[3])
    return std::nullopt;
  const auto channels = static_cast<double>(shape[1]);
  return ConvLayer{channels, channels, static_cast<double>(shape[2]), 1, 1};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double change_by_rates_us(const Dims& plain, const Packing& packing, const Rates& rates) {
  const std::int64_t count = element_count(plain);
  return rates.us(layout_work(count, count / plain[1] * packing.blocks_of(plain[1]) * packing.pack()));
}

LearnedCosts::LearnedCosts(const Program& program, const Table& table, const Packing& packing, const Rates& rates)
    : program_(program), model_(performance_model(table.name)) {
  if (model_ == nullptr) return;
  for (const ProgramOp& op : program.ops) {
    const auto problem = conv_problem(program, op, table, false);
    ops_.push_back(row_of(problem ? profiled_layer(*problem) : std::nullopt));
  }
  if (layers_.empty()) {
    ops_.clear();
    return;
  }
  for (const ProgramValue& value : program.values) values_.push_back(row_of(changed_layer(value)));
  us_ = model_->predict(layers_);
  change_ratio_ = change_ratio_of(packing, rates);
}

void LearnedCosts::replace(const ProgramOp& op, Alternatives& found) const {
  if (ops_.empty()) return;
  const int row = ops_[static_cast<std::size_t>(&op - program_.ops.data())];
  if (row < 0) return;
  // A packed algorithm that may read the plain input was profiled so.
  const auto reads_as_profiled = [&](const Alternative& way) {
    return way.result == Form::plain || way.first == Form::plain ||
           std::none_of(found.ways.begin(), found.ways.end(), [&](const Alternative& other) {
             return other.conv == way.conv && other.parameter == way.parameter && other.first == Form::plain;
           });
  };
  std::vector<double> predicted, ratios;
  for (const Alternative& way : found.ways) {
    const std::string name = std::string(way.algorithm()) + "(" + std::to_string(way.parameter) + ")";
    predicted.push_back(reads_as_profiled(way) ? predicted_us(row, name) : NAN);
    if (std::isfinite(predicted.back()) && way.us > 0) ratios.push_back(predicted.back() / way.us);
  }
  if (ratios.empty()) return;
  const double ratio = median(std::move(ratios));
  found.is_learned = true;
  for (std::size_t i = 0; i < found.ways.size(); ++i) {
    Alternative& way = found.ways[i];
    way.rates_us = way.us;
    way.us = quantised(std::isfinite(predicted[i]) ? predicted[i] : way.us * ratio);
  }
}

double LearnedCosts::change_us(int value, Form to, double rates_us) const {
  if (values_.empty()) return quantised(rates_us);
  const double predicted = predicted_us(values_[at(value)], to == Form::packed ? "pack" : "unpack");
  return quantised(std::isfinite(predicted) ? predicted : rates_us * change_ratio_);
}

int LearnedCosts::row_of(const std::optional<ConvLayer>& layer) {
  if (!layer || !model_->covers(*layer)) return -1;
  const std::array numbers{layer->k, layer->c, layer->im, layer->s, layer->f};
  const auto [found, is_new] = rows_.try_emplace(numbers, static_cast<int>(layers_.size()));
  if (is_new) layers_.push_back(*layer);
  return found->second;
}

double LearnedCosts::predicted_us(int row, const std::string& primitive) const {
  const std::vector<std::string>& names = model_->primitives();
  const auto column = std::find(names.begin(), names.end(), primitive);
  if (row < 0 || column == names.end()) return NAN;
  return us_[at(row) * names.size() + static_cast<std::size_t>(column - names.begin())];
}

double LearnedCosts::change_ratio_of(const Packing& packing, const Rates& rates) const {
  std::vector<double> ratios;
  for (std::size_t value = 0; value < values_.size(); ++value)
    for (const char* change : {"pack", "unpack"})
      if (const double predicted = predicted_us(values_[value], change); std::isfinite(predicted))
        ratios.push_back(predicted / change_by_rates_us(program_.values[value].shape, packing, rates));
  return ratios.empty() ? 1 : median(std::move(ratios));
}

}  // namespace walle
