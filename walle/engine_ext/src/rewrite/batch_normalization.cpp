// BatchNormalization folded into the weights and the bias of the product before it.
#include <cmath>

#include "operators/eager.h"
#include "rewrite/match.h"

namespace walle {

namespace {

// The numbers of a constant for each channel, in float64; nothing where the operand is different.
std::optional<std::vector<double>> by_channel(const Match& match, const Node& node, std::size_t operand, std::size_t channels) {
  const Tensor* given = match.constant(node, operand);
  if (given == nullptr || !is_floating(given->dtype()) || given->ndim() > 1) return std::nullopt;
  const auto count = static_cast<std::size_t>(given->size());
  if (count != channels && count != 1) return std::nullopt;
  const Tensor wide = cast(*given, DType::f64);
  std::vector<double> numbers(channels);
  for (std::size_t i = 0; i < channels; ++i) numbers[i] = wide.data<double>()[count == 1 ? 0 : i];
  return numbers;
}

// The axis of the output channels in the weights, and their groups; nothing where the weights do not fit the channels.
std::optional<std::pair<std::size_t, std::int64_t>> channel_axis(const Node& product, const Dims& shape, std::int64_t channels) {
  std::size_t axis = 0;
  std::int64_t groups = 1;
  if (product.op->name == "Gemm") {
    if (shape.size() != 2) return std::nullopt;
    axis = product.attributes.get_int("transB", 0) != 0 ? 0 : 1;
  } else if (product.op->name == "ConvTranspose") {
    axis = 1;
    groups = product.attributes.get_int("group", 1);
  }
  if (shape.size() < 2 || groups < 1 || groups > channels || shape[0] % groups != 0) return std::nullopt;
  if (shape[axis] * groups != channels) return std::nullopt;
  return std::pair{axis, groups};
}

}  // namespace

void fold_batch_normalization(Match& match) {
  const Node& norm = match.root();
  const Node* product = match.producer(norm, 0);
  const Tensor *weights = product == nullptr ? nullptr : match.constant(*product, 1), *first = match.constant(norm, 1);
  if (weights == nullptr || first == nullptr || first->ndim() != 1 || norm.inputs.size() != 5) return;
  if (!is_floating(weights->dtype()) || item_size(weights->dtype()) < 2) return;
  const auto channels = static_cast<std::size_t>(first->size());
  const auto place = channel_axis(*product, weights->shape(), first->size());
  const auto scale = by_channel(match, norm, 1, channels), shift = by_channel(match, norm, 2, channels),
             mean = by_channel(match, norm, 3, channels), variance = by_channel(match, norm, 4, channels);
  std::optional<std::vector<double>> bias(std::in_place, channels, 0.0);
  if (product->inputs.size() > 2 && product->inputs[2] >= 0) bias = by_channel(match, *product, 2, channels);
  if (!place || !scale || !shift || !mean || !variance || !bias) return;

  const double epsilon = norm.attributes.get_float("epsilon", 1e-5);
  std::vector<double> factors(channels);
  Tensor sums = Tensor::empty(DType::f64, {first->size()});
  for (std::size_t i = 0; i < channels; ++i) {
    factors[i] = (*scale)[i] / std::sqrt((*variance)[i] + epsilon);
    sums.data<double>()[i] = ((*bias)[i] - (*mean)[i]) * factors[i] + (*shift)[i];
  }
  Node made = *product;
  made.inputs.resize(3, -1);
  ScaledWeights scaled{*weights, std::move(factors), place->first, place->second, "scaled " + std::to_string(norm.outputs[0])};
  made.inputs[1] = match.add(product->name + ".weight", std::move(scaled));
  made.inputs[2] = match.add(product->name + ".bias", cast(sums, weights->dtype()));
  made.outputs = norm.outputs;
  match.put_at(*product, std::move(made));
}

}  // namespace walle
