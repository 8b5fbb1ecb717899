// Fusion over a whole program: what follows the sums of a convolution or a matrix product (bias, residual, bounds, an activation,
// a residual behind it) moves into its epilogue, where no other operator reads the result between. Elementwise operators also
// move there past a raster that only moves elements, as one does behind the phases of a transposed convolution.
#include <algorithm>
#include <cmath>
#include <limits>

#include "atomic/fused.h"
#include "graph/index.h"
#include "plan/program.h"

namespace walle {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Fusion {
 public:
  explicit Fusion(Program& program)
      : program_(program), readers_(program.values.size(), 0), producer_(program.values.size(), -1) {
    for (const ProgramOp& op : program.ops)
      for (const int input : op.inputs)
        if (input >= 0) ++readers_[at(input)];
    for (const int output : program.outputs) readers_[at(output)] += 2;  // never between two operators
  }

  void run() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      become_linear(program_.ops[i]);
      relu_to_bounds(program_.ops[i]);
      if (!fuse_bounds(program_.ops[i]) && !fuse_past_rasters(i))
        for (std::size_t operand = 0; operand < program_.ops[i].inputs.size(); ++operand)
          if (fuse_into_operand(i, operand)) break;
      if (program_.ops[i].output >= 0) producer_[at(program_.ops[i].output)] = static_cast<int>(i);
    }
    std::erase_if(program_.ops, [](const ProgramOp& op) { return op.output < 0; });
  }

 private:
  const ProgramValue& value(int index) const { return program_.values[at(index)]; }

  // A product by a constant matrix.
  void become_linear(ProgramOp& op) {
    if (op.is_raster() || op.op->name != "MatMul" || op.inputs.size() != 2) return;
    const ProgramValue &x = value(op.inputs[0]), &w = value(op.inputs[1]);
    if (x.dtype != DType::f32 || !w.is_constant() || w.shape.size() != 2 || x.shape.size() < 2) return;
    op.op = find_operator("Linear");
    op.inputs.resize(4, -1);
  }

  // Moves a Relu or a Clip into the ChannelNormalize before it.
  bool fuse_bounds(ProgramOp& op) {
    if (op.is_raster() || (op.op->name != "Relu" && op.op->name != "Clip")) return false;
    const int from = op.inputs[0];
    if (from < 0 || producer_[at(from)] < 0 || readers_[at(from)] != 1) return false;
    ProgramOp& normal = program_.ops[at(producer_[at(from)])];
    if (normal.is_raster() || normal.op->name != "ChannelNormalize") return false;
    if (normal.attributes.has("low") || normal.attributes.has("high")) return false;
    const auto [low, high] =
        op.op->name == "Relu" ? std::pair<double, double>(0, kInfinity) : *clip_bounds(operands_of(op), op.attributes);
    if (low > -kInfinity) normal.attributes.set("low", low);
    if (high < kInfinity) normal.attributes.set("high", high);
    normal.output = op.output;
    normal.name = op.name;
    producer_[at(op.output)] = producer_[at(from)];
    op.output = -1;
    op.inputs.clear();
    return true;
  }

  // The model's own Relu on a convolution.
  void relu_to_bounds(ProgramOp& op) {
    const auto* unary = std::get_if<UnaryOp>(&op.epilogue.activation);
    if (unary == nullptr || *unary != UnaryOp::Relu || value(op.output).dtype != DType::f32) return;
    op.epilogue.activation = {};
    add_bounds(op.epilogue, 0, kInfinity);
  }

  // The float32 convolution or product that computes this value, where it has one reader; else null.
  ProgramOp* product_of(int index) {
    if (index < 0 || producer_[at(index)] < 0 || readers_[at(index)] != 1) return nullptr;
    ProgramOp& product = program_.ops[at(producer_[at(index)])];
    if (product.is_raster() || !takes_epilogue(product.op->name)) return nullptr;
    return value(product.output).dtype == DType::f32 ? &product : nullptr;
  }

  // Moves op `i` into the product that computes one of its operands; false where that is not possible. A product that reads a
  // residual moves to the place of the op, where all its inputs are computed; others stay, and release their input early.
  bool fuse_into_operand(std::size_t i, std::size_t operand) {
    ProgramOp& op = program_.ops[i];
    const int from = op.inputs[operand];
    if (op.is_raster()) return false;
    ProgramOp* product = product_of(from);
    if (product == nullptr || value(op.output).shape != value(from).shape || value(op.output).dtype != DType::f32) return false;
    if (product->inputs.size() < 4) product->inputs.resize(4, -1);
    if (!(op.op->name == "Add" ? fuse_sum(*product, op.inputs[1 - operand]) : fuse_map(*product, op, operand))) return false;
    product->output = op.output;
    product->name = op.name;
    if (product->epilogue.residual != Residual::none) {
      op = std::move(*product);
      product->output = -1;
      product->inputs.clear();
    } else {
      producer_[at(op.output)] = producer_[at(from)];
      op.output = -1;
      op.inputs.clear();
    }
    return true;
  }

  // The product whose result rasters move to `moved`, each raster for one reader and from one source: an elementwise operator
  // gives the same before them.
  ProgramOp* product_behind(int moved) {
    bool any = false;
    while (moved >= 0 && producer_[at(moved)] >= 0 && readers_[at(moved)] == 1 &&
           program_.ops[at(producer_[at(moved)])].is_raster()) {
      const ProgramOp& raster = program_.ops[at(producer_[at(moved)])];
      const int source = raster.regions.empty() ? -1 : raster.inputs[at(raster.regions[0].source)];
      for (const Region& region : raster.regions)
        if (raster.inputs[at(region.source)] != source) return nullptr;
      moved = source;
      any = true;
    }
    return any ? product_of(moved) : nullptr;
  }

  // Moves op `i` into the product behind the rasters that it reads; not an op with a number for each channel.
  bool fuse_past_rasters(std::size_t i) {
    ProgramOp& op = program_.ops[i];
    if (op.is_raster() || op.op->name == "PRelu") return false;
    for (std::size_t operand = 0; operand < op.inputs.size(); ++operand) {
      const int moved = op.inputs[operand];
      ProgramOp* product = product_behind(moved);
      if (product == nullptr || value(op.output).shape != value(moved).shape || value(op.output).dtype != DType::f32) continue;
      if (!fuse_map(*product, op, operand)) continue;
      product->name = op.name;
      ProgramOp& raster = program_.ops[at(producer_[at(moved)])];
      raster.output = op.output;
      producer_[at(op.output)] = producer_[at(moved)];
      op.output = -1;
      op.inputs.clear();
      return true;
    }
    return false;
  }

  bool fuse_sum(ProgramOp& product, int other) {
    if (other < 0 || value(other).dtype != DType::f32) return false;
    Epilogue& epilogue = product.epilogue;
    const bool begun = epilogue.bounded() || epilogue.activated();
    const Dims& shape = value(product.output).shape;
    if (product.op->name == "Linear" && !begun && !epilogue.bias && epilogue.residual == Residual::none &&
        value(other).is_constant() && value(other).shape == Dims{shape.back()}) {
      product.inputs[kBias] = other;
      epilogue.bias = true;
      return true;
    }
    if (epilogue.residual != Residual::none || value(other).shape != shape || other == product.output) return false;
    product.inputs[kResidual] = other;
    epilogue.residual = begun ? Residual::behind_activation : Residual::to_sums;
    return true;
  }

  static bool add_bounds(Epilogue& epilogue, float low, float high) {
    low = std::max(low, epilogue.low);
    high = std::min(high, epilogue.high);
    if (std::isnan(low) || std::isnan(high) || low > high) return false;
    epilogue.low = low;
    epilogue.high = high;
    return true;
  }

  // Bounds, or the activation behind them; nothing follows a residual behind the activation.
  bool fuse_map(ProgramOp& product, const ProgramOp& op, std::size_t operand) {
    Epilogue& epilogue = product.epilogue;
    if (epilogue.activated() || epilogue.residual == Residual::behind_activation) return false;
    const std::string_view name = op.op->name;
    if (name == "Relu") return add_bounds(epilogue, 0, kInfinity);
    if (name == "Clip") {
      const auto [low, high] = *clip_bounds(operands_of(op), op.attributes);
      return operand == 0 && add_bounds(epilogue, static_cast<float>(low), static_cast<float>(high));
    }
    if (name == "Maximum" || name == "Minimum") {
      const ProgramValue& bound = value(op.inputs[1 - operand]);
      if (!bound.is_constant() || element_count(bound.shape) != 1) return false;
      const float number = *bound.constant.data<float>();
      return name == "Maximum" ? add_bounds(epilogue, number, kInfinity) : add_bounds(epilogue, -kInfinity, number);
    }
    if (name == "PRelu") return operand == 0 && fuse_slope(product, op);
    if (const auto map = find_map(name, op.attributes)) {
      epilogue.activation = *map;
      return true;
    }
    const auto activation = elementwise_activation(name);
    if (activation) epilogue.activation = *activation;
    return activation.has_value();
  }

  std::vector<Operand> operands_of(const ProgramOp& op) const {
    std::vector<Operand> operands;
    for (const int input : op.inputs) {
      if (input < 0) {
        operands.push_back(Operand::none());
        continue;
      }
      const ProgramValue& given = value(input);
      operands.push_back({given.dtype, given.shape, given.constant.storage() != nullptr ? &given.constant : nullptr, false});
    }
    return operands;
  }

  // A slope that is one number is LeakyRelu's; else it must be one for each channel.
  bool fuse_slope(ProgramOp& product, const ProgramOp& op) {
    const ProgramValue& slope = value(op.inputs[1]);
    if (!slope.is_constant()) return false;
    if (element_count(slope.shape) == 1) {
      product.epilogue.activation = Map{MapOp::LeakyRelu, static_cast<double>(*slope.constant.data<float>())};
      return true;
    }
    const Dims& shape = value(product.output).shape;
    const std::size_t channels = product.op->name == "Linear" ? shape.size() - 1 : 1, before = shape.size() - slope.shape.size();
    for (std::size_t i = 0; i < slope.shape.size(); ++i)
      if (slope.shape[i] != (before + i == channels ? shape[channels] : 1)) return false;
    product.inputs.resize(kSlope + 1, -1);
    product.inputs[kSlope] = op.inputs[1];
    product.epilogue.activation = ChannelSlope();
    return true;
  }

  Program& program_;
  std::vector<int> readers_;   // by value: how many operands it is
  std::vector<int> producer_;  // by value: the place of the op that computes it; -1: none
};

}  // namespace

void fuse(Program& program) { Fusion(program).run(); }

}  // namespace walle
