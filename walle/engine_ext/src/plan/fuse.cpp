// Fusion over a whole program: what follows the sums of a convolution or a matrix product (bias, residual, bounds, an activation,
// a residual behind it) becomes part of it, where nothing else reads the result between. What goes element by element also gets
// there past a raster that only moves elements, as one does behind the phases of a transposed convolution.
#include <algorithm>
#include <cmath>
#include <limits>

#include "atomic/products/activation.h"
#include "plan/index.h"
#include "plan/program.h"

namespace walle {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kBias = 2, kResidual = 3;  // operands of Conv and Linear

class Fusion {
 public:
  explicit Fusion(Program& program) : program_(program), readers_(program.values.size(), 0), giver_(program.values.size(), -1) {
    for (const ProgramOp& op : program.ops)
      for (const int input : op.inputs)
        if (input >= 0) ++readers_[at(input)];
    for (const int output : program.outputs) readers_[at(output)] += 2;  // never between two operators
  }

  void run() {
    for (std::size_t i = 0; i < program_.ops.size(); ++i) {
      become_linear(program_.ops[i]);
      take_own_bounds(program_.ops[i]);
      if (!take_past_rasters(i))
        for (std::size_t operand = 0; operand < program_.ops[i].inputs.size(); ++operand)
          if (take(i, operand)) break;
      if (program_.ops[i].output >= 0) giver_[at(program_.ops[i].output)] = static_cast<int>(i);
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

  // An activation that the model gave the operator, as the bounds that it is.
  void take_own_bounds(ProgramOp& op) {
    if (op.is_raster() || op.op->name != "Conv" || value(op.output).dtype != DType::f32) return;
    if (op.attributes.get_string("activation", "") != "Relu") return;
    if (take_bounds(op, 0, kInfinity)) op.attributes = without(op.attributes, {"activation"});
  }

  // The convolution or product of float32 that alone gives this value, for one reader that may be part of it; null: none does.
  ProgramOp* product_of(int from) {
    if (from < 0 || giver_[at(from)] < 0 || readers_[at(from)] != 1) return nullptr;
    ProgramOp& giver = program_.ops[at(giver_[at(from)])];
    if (giver.is_raster() || (giver.op->name != "Conv" && giver.op->name != "Linear")) return nullptr;
    return value(giver.output).dtype == DType::f32 ? &giver : nullptr;
  }

  // Whether op `i` was taken into the giver of one of its operands. The giver moves to where the op was: all that it reads
  // is there by then.
  bool take(std::size_t i, std::size_t operand) {
    ProgramOp& op = program_.ops[i];
    const int from = op.inputs[operand];
    if (op.is_raster()) return false;
    ProgramOp* giver = product_of(from);
    if (giver == nullptr || value(op.output).shape != value(from).shape || value(op.output).dtype != DType::f32) return false;
    if (giver->inputs.size() < 4) giver->inputs.resize(4, -1);
    if (!(op.op->name == "Add" ? take_sum(*giver, op.inputs[1 - operand]) : take_map(*giver, op, operand))) return false;
    giver->output = op.output;
    giver->name = op.name;
    op = std::move(*giver);
    giver->output = -1;
    giver->inputs.clear();
    return true;
  }

  // What gives the one value that rasters move to `moved`, each for one reader and all of it: a map may as well come before them.
  ProgramOp* product_behind(int moved) {
    bool any = false;
    while (moved >= 0 && giver_[at(moved)] >= 0 && readers_[at(moved)] == 1 && program_.ops[at(giver_[at(moved)])].is_raster()) {
      const ProgramOp& raster = program_.ops[at(giver_[at(moved)])];
      const int source = raster.regions.empty() ? -1 : raster.inputs[at(raster.regions[0].source)];
      for (const Region& region : raster.regions)
        if (raster.inputs[at(region.source)] != source) return nullptr;
      moved = source;
      any = true;
    }
    return any ? product_of(moved) : nullptr;
  }

  // Whether op `i` was taken into the product behind the rasters that it reads; not one with a number for each channel.
  bool take_past_rasters(std::size_t i) {
    ProgramOp& op = program_.ops[i];
    if (op.is_raster() || (op.op->fused != nullptr && !op.op->fused->is_map())) return false;
    for (std::size_t operand = 0; operand < op.inputs.size(); ++operand) {
      const int moved = op.inputs[operand];
      ProgramOp* giver = product_behind(moved);
      if (giver == nullptr || value(op.output).shape != value(moved).shape || value(op.output).dtype != DType::f32) continue;
      if (!take_map(*giver, op, operand)) continue;
      giver->name = op.name;
      ProgramOp& raster = program_.ops[at(giver_[at(moved)])];
      raster.output = op.output;
      giver_[at(op.output)] = giver_[at(moved)];
      op.output = -1;
      op.inputs.clear();
      return true;
    }
    return false;
  }

  bool take_sum(ProgramOp& giver, int other) {
    if (other < 0 || value(other).dtype != DType::f32) return false;
    const bool linear = giver.op->name == "Linear", begun = giver.attributes.has("low") || giver.attributes.has("activation");
    const Dims& shape = value(giver.output).shape;
    if (linear && !begun && giver.inputs[kBias] < 0 && giver.inputs[kResidual] < 0 && value(other).is_constant() &&
        value(other).shape == Dims{shape.back()}) {
      giver.inputs[kBias] = other;
      return true;
    }
    if (giver.inputs[kResidual] >= 0 || value(other).shape != shape || other == giver.output) return false;
    giver.inputs[kResidual] = other;
    if (begun) giver.attributes.set("residual_last", std::int64_t{1});
    return true;
  }

  static Attributes without(const Attributes& attributes, std::initializer_list<std::string_view> names) {
    Attributes kept;
    for (const auto& [name, attribute] : attributes.items())
      if (std::find(names.begin(), names.end(), name) == names.end()) kept.set(name, attribute);
    return kept;
  }

  static bool take_bounds(ProgramOp& giver, double low, double high) {
    const double old_low = giver.attributes.get_float("low", -kInfinity),
                 old_high = giver.attributes.get_float("high", kInfinity);
    low = std::max(low, old_low);
    high = std::min(high, old_high);
    if (std::isnan(low) || std::isnan(high) || low > high) return false;
    Attributes kept = without(giver.attributes, {"low", "high"});
    kept.set("low", low);
    kept.set("high", high);
    giver.attributes = std::move(kept);
    return true;
  }

  // Bounds, or the activation behind them; nothing follows a residual that came last.
  bool take_map(ProgramOp& giver, const ProgramOp& op, std::size_t operand) {
    if (giver.attributes.has("activation") || giver.attributes.has("residual_last")) return false;
    if (op.op->name == "Relu") return take_bounds(giver, 0, kInfinity);
    if (op.op->name == "Maximum" || op.op->name == "Minimum") {
      const ProgramValue& bound = value(op.inputs[1 - operand]);
      if (!bound.is_constant() || element_count(bound.shape) != 1) return false;
      const double number = *bound.constant.data<float>();
      return op.op->name == "Maximum" ? take_bounds(giver, number, kInfinity) : take_bounds(giver, -kInfinity, number);
    }
    if (op.op->name == "PRelu") return operand == 0 && take_slope(giver, op);
    if (op.op->fused != nullptr && op.op->fused->is_map()) {
      set_map(giver, op.op->name, op.op->fused->map(op.attributes));
      return true;
    }
    if (op.op->family != Family::unary) return false;
    giver.attributes.set("activation", std::string(op.op->name));
    return true;
  }

  static void set_map(ProgramOp& giver, std::string_view name, const Map& map) {
    giver.attributes.set("activation", std::string(name));
    giver.attributes.set("activation_map", static_cast<std::int64_t>(map.op));
    giver.attributes.set("activation_a", map.a);
    giver.attributes.set("activation_b", map.b);
  }

  // A slope that is one number is LeakyRelu's; else it must be one for each channel.
  bool take_slope(ProgramOp& giver, const ProgramOp& op) {
    const ProgramValue& slope = value(op.inputs[1]);
    if (!slope.is_constant()) return false;
    if (element_count(slope.shape) == 1) {
      set_map(giver, "LeakyRelu", {MapOp::LeakyRelu, static_cast<double>(*slope.constant.data<float>())});
      return true;
    }
    const Dims& shape = value(giver.output).shape;
    const std::size_t channels = giver.op->name == "Linear" ? shape.size() - 1 : 1, before = shape.size() - slope.shape.size();
    for (std::size_t i = 0; i < slope.shape.size(); ++i)
      if (slope.shape[i] != (before + i == channels ? shape[channels] : 1)) return false;
    giver.inputs.resize(kSlope + 1, -1);
    giver.inputs[kSlope] = op.inputs[1];
    giver.attributes.set("activation", std::string("PRelu"));
    return true;
  }

  Program& program_;
  std::vector<int> readers_, giver_;
};

}  // namespace

void fuse(Program& program) { Fusion(program).run(); }

}  // namespace walle
