#include "plan/differentiate.h"

#include <algorithm>

#include "core/stop.h"
#include "geometry/raster_attributes.h"
#include "graph/index.h"
#include "operators/gradient/gradient.h"
#include "operators/gradient/raster.h"

namespace walle {

namespace {

using Ref = Emitter::Ref;

class Backward {
 public:
  Backward(ProgramEmitter& emitter, std::span<const Ref> xs)
      : emitter_(emitter), ops_(emitter.program().ops.size()), depends_(emitter.program().values.size()) {
    for (const Ref x : xs) depends_[at(x)] = true;
    for (const ProgramOp& op : emitter.program().ops)
      if (!depends_[at(op.output)])
        depends_[at(op.output)] =
            std::any_of(op.inputs.begin(), op.inputs.end(), [&](int input) { return input >= 0 && depends_[at(input)]; });
    gradients_.assign(depends_.size(), Emitter::kAbsent);
  }

  void begin(Ref y) {
    const Operand value = emitter_.operand(y);
    if (!is_floating(value.dtype))
      throw Error(ErrorKind::dtype, "the gradient of " + std::string(dtype_name(value.dtype)) + "; it must be of floats");
    const Dims shape = value.shape;
    const Ref one = emitter_.number(1, value.dtype);
    add(y, shape.empty() ? one : emitter_.one("Expand", {one}, {{"shape", shape}}));
  }

  // Walks back from the last op of the program as it was.
  void run() {
    for (std::size_t i = ops_; i-- > 0;) {
      throw_if_stopped();
      const ProgramOp op = emitter_.program().ops[i];  // a copy: what is emitted moves the ops
      const Ref gradient = gradients_[at(op.output)];
      if (gradient == Emitter::kAbsent || !depends_[at(op.output)]) continue;
      emitter_.set_node(op.name);
      try {
        if (op.is_raster())
          move_back(op, gradient);
        else
          apply_rule(op, gradient);
      } catch (const Error& error) {
        throw Error(error.kind(), "the gradient of " + op.title() + ": " + error.what());
      }
    }
  }

  Ref gradient_of(Ref x) const { return gradients_[at(x)]; }

 private:
  void add(Ref value, Ref gradient) {
    Ref& sum = gradients_[at(value)];
    sum = sum == Emitter::kAbsent ? gradient : emitter_.one("Add", {sum, gradient});
  }

  bool needs(Ref value) const {
    return value >= 0 && depends_[at(value)] && is_floating(emitter_.program().values[at(value)].dtype);
  }

  void apply_rule(const ProgramOp& op, Ref gradient) {
    const GradientRule* rule = find_gradient(op.op->name);
    if (rule == nullptr) throw Error(ErrorKind::unsupported, "the operator has no gradient rule");
    if (rule->kind == Differentiable::flat) return;
    if (rule->kind == Differentiable::refused)
      throw Error(ErrorKind::unsupported, "the operator has no gradient: " + std::string(rule->reason));
    std::vector<bool> needed;
    for (const int input : op.inputs) needed.push_back(needs(input));
    const auto found = rule->make({emitter_, op.inputs, op.output, gradient, op.attributes, op.axes, needed});
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != Emitter::kAbsent && needed[i]) add(op.inputs[i], found[i]);
  }

  // Whether the region swaps the axes of a matrix of that shape.
  static bool is_transposition(const Region& region, const Dims& shape) {
    if (shape.size() != 2 || region.axes != 2 || region.src.offset != 0 || region.dst.offset != 0) return false;
    const std::size_t rows = region.src.stride[0] == shape[1] && region.size[0] == shape[0] ? 0 : 1, columns = 1 - rows;
    return region.size[rows] == shape[0] && region.size[columns] == shape[1] && region.src.stride[rows] == shape[1] &&
           region.src.stride[columns] == 1 && region.dst.stride[rows] == 1 && region.dst.stride[columns] == shape[0];
  }

  // Return b' @ a' where a matrix is the product a @ b of small operands: weights that are stored transposed get their gradient
  // without a raster of their size. kAbsent for other values.
  Ref transposed_product(Ref matrix) const {
    const Program& program = emitter_.program();
    const Dims shape = program.values[at(matrix)].shape;
    const ProgramOp* made = nullptr;
    for (auto op = program.ops.rbegin(); op != program.ops.rend() && made == nullptr; ++op) {
      if (op->output != matrix) continue;
      if (rename_offset(program, *op) == std::int64_t{0} && program.values[at(op->inputs[0])].shape == shape)
        matrix = op->inputs[0];
      else
        made = &*op;
    }
    if (made == nullptr || made->is_raster() || made->op->name != "MatMul" || made->inputs.size() != 2) return Emitter::kAbsent;
    const Ref a = made->inputs[0], b = made->inputs[1];
    const Dims a_shape = emitter_.operand(a).shape;
    if (a_shape.size() != 2 || emitter_.operand(b).shape.size() != 2 || a_shape[1] >= a_shape[0]) return Emitter::kAbsent;
    const auto transposed = [&](Ref x) { return emitter_.one("Transpose", {x}, {{"perm", Dims{1, 0}}}); };
    const Ref left = transposed(b);
    return emitter_.one("MatMul", {left, transposed(a)});
  }

  // The gradient of a raster is a raster with its views swapped, or adds where an element of its source is read more than once.
  void move_back(const ProgramOp& op, Ref gradient) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const Ref source = op.inputs[i];
      if (!needs(source)) continue;
      const Dims shape = emitter_.operand(source).shape;
      const std::int64_t extent = element_count(shape), result_extent = element_count(emitter_.operand(gradient).shape);
      std::vector<Region> own;
      for (Region region : op.regions) {
        if (region.source != static_cast<int>(i) || region.count() == 0) continue;
        region.source = 0;
        own.push_back(region);
      }
      if (own.empty() || extent == 0) continue;
      if (own.size() == 1 && is_transposition(own[0], shape))
        if (const Ref product = transposed_product(gradient); product != Emitter::kAbsent) {
          add(source, product);
          continue;
        }
      if (auto swapped = swap(own, extent, result_extent))
        add(source, emitter_.move(gradient, std::move(*swapped), shape));
      else
        add(source, emitter_.one("RasterGradient", {gradient}, raster_attributes(shape, own)));
    }
  }

  // Return the raster from the result to the source where that fills each element once.
  static std::optional<std::vector<Region>> swap(std::span<const Region> regions, std::int64_t extent,
                                                 std::int64_t result_extent) {
    std::int64_t moved = 0;
    for (const Region& region : regions) moved += region.count();
    if (moved != extent) return std::nullopt;  // some elements are read more than once, or none
    RasterGradient gradient = raster_gradient(regions, 0, extent, result_extent);
    if (gradient.layers != 1) return std::nullopt;
    return std::move(gradient.regions);
  }

  ProgramEmitter& emitter_;
  const std::size_t ops_;
  std::vector<bool> depends_;   // by value of the program as it was: whether it depends on an x
  std::vector<Ref> gradients_;  // by value
};

}  // namespace

std::vector<Ref> differentiate(ProgramEmitter& emitter, Ref y, std::span<const Ref> xs, std::span<const std::string> names) {
  Backward backward(emitter, xs);
  backward.begin(y);
  backward.run();
  std::vector<Ref> gradients;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    gradients.push_back(backward.gradient_of(xs[i]));
    if (gradients.back() == Emitter::kAbsent)
      throw Error(ErrorKind::unsupported, "no gradient reaches '" + names[i] +
                                              "': the value that is differentiated does not depend on it, or only through "
                                              "operators whose derivative is 0; freeze it, or use it");
  }
  return gradients;
}

}  // namespace walle
