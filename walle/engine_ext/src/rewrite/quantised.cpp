// Models quantised in ONNX's QDQ form: DequantizeLinear, a float operator, QuantizeLinear become one operator on bytes.
//
// A convolution or matrix product by constant weights, a sum, and a mean over all pixels become their QLinear forms, whose
// products and sums are whole numbers; what only moves or chooses elements works on the bytes as they are, converted to the
// result's scale where that is different. Results differ from those of the float operators by rounding alone: one step of the
// result's scale where a value is between two. Whatever else is between the two, has scales of another form, has a bias
// that the sums' unit is too coarse for, or sums that can leave int32, stays float.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "operators/eager.h"
#include "rewrite/match.h"

namespace walle {

namespace {

// Of the result's step: by how much a bias may change where it becomes a whole number of the sums' units.
constexpr double kBiasError = 1.0 / 8;
constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min(), kMost = std::numeric_limits<std::int32_t>::max();

// Bytes with their scales and zero points, one in all or one for each slice along the axis.
struct Quantised {
  int value = -1, scale_value = -1, zero_value = -1;
  std::vector<double> scale;
  std::vector<int> zero;
  DType dtype = DType::u8;
  std::int64_t axis = 1;

  bool whole() const { return scale.size() == 1; }
  bool is_like(const Quantised& other) const { return dtype == other.dtype && zero == other.zero && scale == other.scale; }
};

struct Weights {
  Quantised bytes;
  Tensor value;
};

bool is_quantised_type(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

int byte_of(const Tensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::i8 ? static_cast<int>(tensor.data<std::int8_t>()[i]) : tensor.data<std::uint8_t>()[i];
}

Node node_of(std::string_view op, std::string name, std::vector<int> inputs, int output, Attributes attributes = {}) {
  Node made;
  made.op = find_operator(op);
  made.name = std::move(name);
  made.inputs = std::move(inputs);
  made.outputs = {output};
  made.attributes = std::move(attributes);
  return made;
}

class QuantisedMatch {
 public:
  explicit QuantisedMatch(Match& match) : match_(match), root_(match.root()) {}

  void run() {
    const auto result = parameters(root_, root_.outputs[0], DType::u8);
    if (!result || !result->whole()) return;
    if (const auto x = bytes_of(root_, 0)) {
      match_.put(rescaled(*x, *result, root_.name));
      return;
    }
    const Node* before = match_.producer(root_, 0);
    bool relu = false;
    if (before != nullptr && before->op->name == "Relu") {
      relu = true;
      before = match_.producer(*before, 0);
    }
    if (before == nullptr) return;
    const std::string_view op = before->op->name;
    if (op == "Conv")
      product(*before, *result, "QLinearConv", weights_of(*before, 0), relu, before->attributes.items());
    else if (op == "Gemm" || op == "MatMul")
      matrix_product(*before, *result, relu);
    else if (op == "Add")
      sum(*before, *result, relu);
    else if (relu || op == "Relu" || op == "DequantizeLinear" || op == "QuantizeLinear")
      return;
    else if (op == "GlobalAveragePool")
      mean(*before, *result);
    else if (op == "Concat")
      joined(*before, *result);
    else
      moved(*before, *result);
  }

 private:
  // The scale and zero point of a QuantizeLinear or DequantizeLinear whose bytes are `value`, of type `fallback` where the node
  // has no zero point.
  std::optional<Quantised> parameters(const Node& node, int value, std::optional<DType> fallback) {
    const Tensor* scale = match_.constant(node, 1);
    if (scale == nullptr || scale->dtype() != DType::f32 || scale->size() < 1) return std::nullopt;
    Quantised found;
    found.value = value;
    found.scale_value = node.inputs[1];
    found.axis = node.attributes.get_int("axis", 1);
    for (std::int64_t i = 0; i < scale->size(); ++i) found.scale.push_back(scale->data<float>()[i]);
    if (!std::all_of(found.scale.begin(), found.scale.end(), [](double one) { return std::isfinite(one) && one > 0; }))
      return std::nullopt;
    if (node.inputs.size() < 3 || node.inputs[2] < 0) {
      if (!fallback || !is_quantised_type(*fallback)) return std::nullopt;
      found.dtype = *fallback;
      found.zero.assign(found.scale.size(), 0);
      Tensor zero = Tensor::empty(found.dtype, scale->shape());
      std::fill_n(zero.raw(), static_cast<std::size_t>(zero.size()), std::byte{0});
      found.zero_value = match_.add(node.name + ".zero", std::move(zero));
      return found;
    }
    const Tensor* zero = match_.constant(node, 2);
    if (zero == nullptr || !is_quantised_type(zero->dtype()) || zero->size() != scale->size()) return std::nullopt;
    found.zero_value = node.inputs[2];
    found.dtype = zero->dtype();
    for (std::int64_t i = 0; i < zero->size(); ++i) found.zero.push_back(byte_of(*zero, i));
    return found;
  }

  // The node before an operand, if it is a DequantizeLinear.
  const Node* dequantised(const Node& node, std::size_t operand) const {
    const Node* before = match_.producer(node, operand);
    return before != nullptr && before->op->name == "DequantizeLinear" ? before : nullptr;
  }

  // The type of the bytes that a DequantizeLinear reads, where that is known without its zero point.
  std::optional<DType> type_of_bytes(const Node& dequantise) const {
    if (const auto known = match_.dtype(dequantise, 0)) return known;
    const Node* before = match_.producer(dequantise, 0);
    if (before == nullptr || before->op->name != "QuantizeLinear") return std::nullopt;
    if (before->inputs.size() < 3 || before->inputs[2] < 0) return DType::u8;
    const Tensor* zero = match_.constant(*before, 2);
    return zero == nullptr ? std::nullopt : std::optional(zero->dtype());
  }

  // The bytes that an operand is dequantised from by one scale.
  std::optional<Quantised> bytes_of(const Node& node, std::size_t operand) {
    const Node* before = dequantised(node, operand);
    if (before == nullptr) return std::nullopt;
    auto found = parameters(*before, before->inputs[0], type_of_bytes(*before));
    return found && found->whole() ? found : std::nullopt;
  }

  // Constant bytes with one scale, or one for each slice along this axis.
  std::optional<Weights> weights_of(const Node& node, std::size_t axis) {
    const Node* before = dequantised(node, 1);
    const Tensor* value = before == nullptr ? nullptr : match_.constant(*before, 0);
    if (value == nullptr || static_cast<std::size_t>(value->ndim()) <= axis || value->size() == 0) return std::nullopt;
    auto found = parameters(*before, before->inputs[0], value->dtype());
    if (!found || value->dtype() != found->dtype) return std::nullopt;
    const std::int64_t rank = value->ndim(), own = found->axis < 0 ? found->axis + rank : found->axis;
    if (!found->whole() &&
        (own != static_cast<std::int64_t>(axis) || static_cast<std::int64_t>(found->scale.size()) != value->shape()[axis]))
      return std::nullopt;
    return Weights{std::move(*found), *value};
  }

  // The bias (operand 2) in units of `units`, one for each column, as float64 and maybe not whole; nothing where it is different.
  std::optional<std::vector<double>> bias_steps(const Node& node, const std::vector<double>& units) const {
    std::vector<double> steps(units.size());
    if (const Tensor* value = match_.constant(node, 2)) {
      if (value->shape() != Dims{static_cast<std::int64_t>(units.size())} || !is_floating(value->dtype())) return std::nullopt;
      const Tensor wide = cast(*value, DType::f64);
      for (std::size_t i = 0; i < units.size(); ++i) steps[i] = wide.data<double>()[i] / units[i];
      return steps;
    }
    const Node* before = dequantised(node, 2);
    const Tensor *whole = before == nullptr ? nullptr : match_.constant(*before, 0),
                 *own = before == nullptr ? nullptr : match_.constant(*before, 1);
    if (whole == nullptr || own == nullptr || own->dtype() != DType::f32 || whole->dtype() != DType::i32) return std::nullopt;
    if (whole->shape() != Dims{static_cast<std::int64_t>(units.size())}) return std::nullopt;
    if (own->size() != 1 && own->size() != whole->size()) return std::nullopt;
    if (before->inputs.size() > 2 && before->inputs[2] >= 0) {
      const Tensor* zero = match_.constant(*before, 2);
      if (zero == nullptr || zero->dtype() != DType::i32) return std::nullopt;
      for (std::int64_t i = 0; i < zero->size(); ++i)
        if (zero->data<std::int32_t>()[i] != 0) return std::nullopt;
    }
    bool same = true;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const double scale = own->data<float>()[own->size() == 1 ? 0 : i];
      if (!std::isfinite(scale)) return std::nullopt;
      same = same && std::fabs(scale - units[i]) <= 1e-6 * units[i];
      steps[i] = whole->data<std::int32_t>()[i] * scale / units[i];
    }
    if (same)
      for (std::size_t i = 0; i < units.size(); ++i) steps[i] = whole->data<std::int32_t>()[i];
    return steps;
  }

  // The bias in whole units; nothing where that does not fit int32, or is not near in steps of the result.
  std::optional<Tensor> whole_bias(const Node& node, const std::vector<double>& units, double step) const {
    const auto steps = bias_steps(node, units);
    if (!steps) return std::nullopt;
    Tensor bias = Tensor::empty(DType::i32, {static_cast<std::int64_t>(units.size())});
    for (std::size_t i = 0; i < units.size(); ++i) {
      const double whole = std::nearbyint((*steps)[i]);
      if (!(whole >= static_cast<double>(kLeast) && whole <= static_cast<double>(kMost))) return std::nullopt;
      if (std::fabs(whole - (*steps)[i]) * units[i] > kBiasError * step) return std::nullopt;
      bias.data<std::int32_t>()[i] = static_cast<std::int32_t>(whole);
    }
    return bias;
  }

  // Whether the sums of x by these weights, whose columns are along the axis, and of the bias fit int32.
  static bool fit(const Quantised& x, const Weights& weights, std::size_t axis, const Tensor* bias) {
    const int low = x.dtype == DType::i8 ? -128 : 0, high = x.dtype == DType::i8 ? 127 : 255;
    const std::int64_t most = std::max(high - x.zero[0], x.zero[0] - low);
    const Dims& shape = weights.value.shape();
    std::int64_t inner = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
    const std::int64_t columns = shape[axis];
    // What any weights would sum to is enough where it fits: reading all of a large model takes long.
    std::vector<std::int64_t> sums(static_cast<std::size_t>(columns), 0);
    bool surely = true;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const int zero = weights.bytes.zero[weights.bytes.whole() ? 0 : i];
      const int least = weights.bytes.dtype == DType::i8 ? -128 : 0, greatest = weights.bytes.dtype == DType::i8 ? 127 : 255;
      sums[i] = weights.value.size() / columns * std::max(greatest - zero, zero - least);
      const std::int64_t start = bias == nullptr ? 0 : std::llabs(bias->data<std::int32_t>()[i]);
      surely = surely && most * sums[i] + start <= kMost;
    }
    if (surely) return true;
    std::fill(sums.begin(), sums.end(), 0);
    for (std::int64_t row = 0; row < weights.value.size() / inner; ++row) {
      const auto column = static_cast<std::size_t>(row % columns);
      const int zero = weights.bytes.zero[weights.bytes.whole() ? 0 : column];
      for (std::int64_t i = row * inner; i < (row + 1) * inner; ++i) sums[column] += std::abs(byte_of(weights.value, i) - zero);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::int64_t start = bias == nullptr ? 0 : std::llabs(bias->data<std::int32_t>()[i]);
      if (most * sums[i] + start > kMost) return false;
    }
    return true;
  }

  void product(const Node& node, const Quantised& result, std::string_view op, const std::optional<Weights>& weights, bool relu,
               const std::vector<std::pair<std::string, Attribute>>& attributes) {
    const auto x = bytes_of(node, 0);
    if (!x || !weights) return;
    const std::size_t axis = op == "QLinearConv" ? 0 : 1;
    std::vector<double> units(static_cast<std::size_t>(weights->value.shape()[axis]));
    for (std::size_t i = 0; i < units.size(); ++i) units[i] = x->scale[0] * weights->bytes.scale[weights->bytes.whole() ? 0 : i];
    std::optional<Tensor> bias;
    if (node.inputs.size() > 2 && node.inputs[2] >= 0) {
      bias = whole_bias(node, units, result.scale[0]);
      if (!bias) return;
    }
    if (!fit(*x, *weights, axis, bias ? &*bias : nullptr)) return;
    const Quantised& w = weights->bytes;
    std::vector<int> inputs{x->value,      x->scale_value, x->zero_value,      w.value,
                            w.scale_value, w.zero_value,   result.scale_value, result.zero_value};
    if (bias) inputs.push_back(match_.add(node.name + ".bias", std::move(*bias)));
    Attributes kept;
    for (const auto& [name, value] : attributes) kept.set(name, value);
    if (relu) kept.set("activation", std::string("Relu"));
    match_.put(node_of(op, node.name, std::move(inputs), result.value, std::move(kept)));
  }

  void matrix_product(const Node& node, const Quantised& result, bool relu) {
    if (node.attributes.get_int("transA", 0) != 0) return;
    const bool turned = node.attributes.get_int("transB", 0) != 0;
    auto weights = weights_of(node, turned ? 0 : 1);
    if (!weights || weights->value.ndim() != 2) return;
    if (turned) {
      const Tensor given = weights->value;
      weights->value = match_.derived(given, "transposed",
                                      [&] { return evaluate_one("Transpose", std::array{given}, {{"perm", Dims{1, 0}}}); });
      weights->bytes.value = match_.add(node.name + ".weight", weights->value);
    }
    product(node, result, "QLinearMatMul", weights, relu, {});
  }

  void sum(const Node& node, const Quantised& result, bool relu) {
    const auto a = bytes_of(node, 0), b = bytes_of(node, 1);
    if (!a || !b) return;
    Attributes attributes;
    if (relu) attributes.set("activation", std::string("Relu"));
    match_.put(node_of(
        "QLinearAdd", node.name,
        {a->value, a->scale_value, a->zero_value, b->value, b->scale_value, b->zero_value, result.scale_value, result.zero_value},
        result.value, std::move(attributes)));
  }

  void mean(const Node& node, const Quantised& result) {
    const auto x = bytes_of(node, 0);
    if (!x) return;
    match_.put(node_of("QLinearGlobalAveragePool", node.name,
                       {x->value, x->scale_value, x->zero_value, result.scale_value, result.zero_value}, result.value));
  }

  // Bytes taken to the scale of the result.
  static Node rescaled(const Quantised& x, const Quantised& result, std::string name) {
    if (x.is_like(result)) return node_of("Identity", std::move(name), {x.value}, result.value);
    return node_of("QLinearRescale", std::move(name),
                   {x.value, x.scale_value, x.zero_value, result.scale_value, result.zero_value}, result.value);
  }

  void moved(const Node& node, const Quantised& result) {
    const auto x = bytes_of(node, 0);
    if (!x) return;
    Quantised moved = *x;
    moved.value = match_.add(node.name + ".moved");
    Node made = node;
    made.inputs[0] = x->value;
    made.outputs = {moved.value};
    match_.put(std::move(made));
    match_.put(rescaled(moved, result, node.name + ".scale"));
  }

  void joined(const Node& node, const Quantised& result) {
    std::vector<Quantised> parts;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      auto part = bytes_of(node, i);
      if (!part) return;
      parts.push_back(std::move(*part));
    }
    Node made = node;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Quantised fitted = result;
      fitted.value = match_.add(node.name + ".part");
      match_.put(rescaled(parts[i], fitted, node.name + ".scale"));
      made.inputs[i] = fitted.value;
    }
    made.outputs = {result.value};
    match_.put(std::move(made));
  }

  Match& match_;
  const Node& root_;
};

}  // namespace

void fuse_quantised(Match& match) { QuantisedMatch(match).run(); }

}  // namespace walle
