// Fusion of arithmetic that exporters write for one operator: LayerNormalization and Gelu. Opsets before 17 and 20 do not have
// them. A chain and its operator compute the same but for rounding; the operator has its own kernel.
#include <array>
#include <cmath>

#include "graph/index.h"
#include "plan/kernel_set.h"

namespace walle {

namespace {

class ChainFusion {
 public:
  ChainFusion(Program& program, const KernelSet& kernels)
      : program_(program), kernels_(kernels), producer_(program.values.size(), nullptr) {
    for (ProgramOp& op : program.ops) producer_[at(op.output)] = &op;
  }

  void run() {
    for (ProgramOp& op : program_.ops) {
      if (op.is_raster() || op.inputs.size() != 2 || value(op.output).dtype != DType::f32) continue;
      if (op.op->name == "Add") replace_normalization(op);
      if (op.op->name == "Mul") replace_gelu(op);
    }
    remove_unread(program_);
  }

 private:
  static constexpr double kHalfRoot = 0.70710678118654752440;    // sqrt(1 / 2)
  static constexpr double kRoot = 1.41421356237309504880;        // sqrt(2)
  static constexpr double kTanhFactor = 0.79788456080286535588;  // sqrt(2 / pi)
  static constexpr double kCubeFactor = 0.044715;

  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // The operator of that name that computes the value in float32; null where the value is computed differently.
  const ProgramOp* producer(int index, std::string_view name) const {
    const ProgramOp* op = index < 0 ? nullptr : producer_[at(index)];
    return op != nullptr && !op->is_raster() && op->op->name == name && value(index).dtype == DType::f32 ? op : nullptr;
  }
  // The float32 number that a constant is.
  std::optional<double> number(int index) const {
    const ProgramValue& given = value(index);
    if (given.constant.storage() == nullptr || given.dtype != DType::f32 || given.shape.size() > 1) return std::nullopt;
    if (element_count(given.shape) != 1) return std::nullopt;
    return static_cast<double>(*given.constant.data<float>());
  }
  bool is_number(int index, double expected) const {
    const auto found = number(index);
    return found && std::fabs(*found - expected) <= 1e-6 * std::fabs(expected);
  }
  // The operand beside this number in an operator with two operands in any order; -1 where neither is that number.
  int beside(const ProgramOp* op, double expected) const {
    if (op == nullptr) return -1;
    for (std::size_t i = 0; i < 2; ++i)
      if (is_number(op->inputs[i], expected)) return op->inputs[1 - i];
    return -1;
  }

  // Replaces (x - mean) / sqrt(variance + epsilon) * scale + shift.
  void replace_normalization(ProgramOp& op) {
    for (std::size_t i = 0; i < 2; ++i) {
      const int shift = op.inputs[1 - i];
      const ProgramOp* scaled = producer(op.inputs[i], "Mul");
      if (scaled == nullptr || value(shift).constant.storage() == nullptr) continue;
      for (std::size_t j = 0; j < 2; ++j) {
        const int scale = scaled->inputs[1 - j];
        if (value(scale).constant.storage() == nullptr) continue;
        if (const ProgramOp* quotient = producer(scaled->inputs[j], "Div"))
          if (normalizes(op, *quotient, scale, shift)) return;
      }
    }
  }

  bool normalizes(ProgramOp& op, const ProgramOp& quotient, int scale, int shift) {
    const ProgramOp *centred = producer(quotient.inputs[0], "Sub"), *root = producer(quotient.inputs[1], "Sqrt");
    const ProgramOp* padded = root == nullptr ? nullptr : producer(root->inputs[0], "Add");
    if (centred == nullptr || padded == nullptr) return false;
    const int x = centred->inputs[0];
    const ProgramOp* mean = producer(centred->inputs[1], "ReduceMean");
    if (mean == nullptr || mean->inputs[0] != x || !reduces_last(*mean, x)) return false;
    const Dims& shape = value(x).shape;
    const Dims row(shape.end() - static_cast<std::ptrdiff_t>(mean->axes.size()), shape.end());
    if (value(op.output).shape != shape || value(scale).shape != row || value(shift).shape != row) return false;
    for (std::size_t i = 0; i < 2; ++i) {
      const ProgramOp* variance = producer(padded->inputs[i], "ReduceMean");
      const auto epsilon = number(padded->inputs[1 - i]);
      if (variance == nullptr || !epsilon || variance->axes != mean->axes || !reduces_last(*variance, variance->inputs[0]))
        continue;
      if (!is_square(variance->inputs[0], quotient.inputs[0])) continue;
      return replace(op, "LayerNormalization", {x, scale, shift},
                     {{"axis", -static_cast<std::int64_t>(row.size())}, {"epsilon", *epsilon}});
    }
    return false;
  }

  // Whether the reduced axes are the last ones and stay as dimensions of 1.
  bool reduces_last(const ProgramOp& op, int of) const {
    const std::size_t rank = value(of).shape.size(), count = op.axes.size();
    if (count == 0 || value(op.output).shape.size() != rank) return false;
    for (std::size_t i = 0; i < count; ++i)
      if (op.axes[i] != rank - count + i) return false;
    return true;
  }
  bool is_square(int index, int of) const {
    if (const ProgramOp* power = producer(index, "Power")) return power->inputs[0] == of && is_number(power->inputs[1], 2);
    const ProgramOp* product = producer(index, "Mul");
    return product != nullptr && product->inputs[0] == of && product->inputs[1] == of;
  }

  // Replaces x / 2 * (1 + erf(x / sqrt 2)), and its approximation by tanh; factors in any order.
  void replace_gelu(ProgramOp& op) {
    for (std::size_t i = 0; i < 2; ++i) {
      const ProgramOp* inner = producer(op.inputs[i], "Mul");
      if (inner == nullptr) continue;
      const std::array<int, 3> factors{inner->inputs[0], inner->inputs[1], op.inputs[1 - i]};
      for (std::size_t half = 0; half < 3; ++half) {
        if (!is_number(factors[half], 0.5)) continue;
        const int a = factors[(half + 1) % 3], b = factors[(half + 2) % 3];
        if (is_gelu(op, a, b) || is_gelu(op, b, a)) return;
      }
    }
  }

  bool is_gelu(ProgramOp& op, int x, int factor) {
    if (value(x).dtype != DType::f32 || value(x).shape != value(op.output).shape) return false;
    const int curve = beside(producer(factor, "Add"), 1);
    if (const ProgramOp* erf = producer(curve, "Erf"))
      return is_scaled(erf->inputs[0], x) && replace(op, "Gelu", {x}, {{"approximate", std::string("none")}});
    const ProgramOp* tanh = producer(curve, "Tanh");
    return tanh != nullptr && is_tanh_argument(tanh->inputs[0], x) &&
           replace(op, "Gelu", {x}, {{"approximate", std::string("tanh")}});
  }

  bool is_scaled(int index, int x) const {
    if (const ProgramOp* quotient = producer(index, "Div"))
      return quotient->inputs[0] == x && is_number(quotient->inputs[1], kRoot);
    return beside(producer(index, "Mul"), kHalfRoot) == x;
  }

  // Whether the value is sqrt(2 / pi) * (x + 0.044715 * x^3).
  bool is_tanh_argument(int index, int x) const {
    const ProgramOp* total = producer(beside(producer(index, "Mul"), kTanhFactor), "Add");
    if (total == nullptr) return false;
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<int> factors;
      collect_factors(total->inputs[1 - i], x, factors);
      int weights = 0, powers = 0, cubes = 0;
      for (const int one : factors) {
        const ProgramOp* power = producer(one, "Power");
        if (is_number(one, kCubeFactor)) ++weights;
        if (one == x) ++powers;
        if (power != nullptr && power->inputs[0] == x && is_number(power->inputs[1], 3)) ++cubes;
      }
      const bool cubed = (powers == 3 && factors.size() == 4) || (cubes == 1 && factors.size() == 2);
      if (total->inputs[i] == x && weights == 1 && cubed) return true;
    }
    return false;
  }
  // The factors of a product of products, at most five; x is not taken apart.
  void collect_factors(int index, int x, std::vector<int>& factors) const {
    constexpr std::size_t kMostFactors = 5;
    if (factors.size() >= kMostFactors) return;
    const ProgramOp* product = index == x ? nullptr : producer(index, "Mul");
    if (product == nullptr) {
      factors.push_back(index);
      return;
    }
    for (const int input : product->inputs) collect_factors(input, x, factors);
  }

  // Replaces the op where a kernel computes it with these operands.
  bool replace(ProgramOp& op, std::string_view name, std::vector<int> inputs, Attributes attributes) {
    std::vector<Operand> operands;
    for (const int input : inputs) operands.push_back({value(input).dtype, value(input).shape, nullptr, false});
    const OpDef* composite = find_operator(name);
    if (!kernels_.has_composite(*composite, operands, attributes, 1)) return false;
    op.op = composite;
    op.inputs = std::move(inputs);
    op.attributes = std::move(attributes);
    return true;
  }

  Program& program_;
  const KernelSet& kernels_;
  std::vector<const ProgramOp*> producer_;
};

}  // namespace

void fuse_chains(Program& program, const KernelSet& kernels) { ChainFusion(program, kernels).run(); }

}  // namespace walle
