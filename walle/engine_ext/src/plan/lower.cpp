// Lowering: the graph as a program of atomic operators and rasters (steps 2 and 3 of a session, §4.2).
#include <algorithm>

#include "core/stop.h"
#include "geometry/raster.h"
#include "operators/eager.h"
#include "operators/gradient/gradient.h"
#include "plan/differentiate.h"
#include "plan/kernel_set.h"

namespace walle {

namespace {

// Larger results of constant inputs are left to run time, where their memory is shared.
constexpr std::int64_t kMaxFoldedBytes = std::int64_t{64} << 20;
// Values of one program; planning takes time that grows with the square of some of its sizes.
constexpr std::size_t kMaxProgramValues = std::size_t{1} << 18;
constexpr std::size_t kMaxProgramRank = 64;

class Lowering final : public ProgramEmitter {
 public:
  // Of a program that is differentiated, operators are taken apart as far as they have no gradient rule.
  Lowering(Program& program, const KernelSet& kernels, bool differentiated)
      : program_(program), kernels_(kernels), differentiated_(differentiated) {}

  const Program& program() const noexcept override { return program_; }
  void set_node(std::string name) override { node_ = std::move(name); }

  Ref move(Ref source, std::vector<Region> regions, Dims shape) override {
    ProgramOp raster;
    raster.name = node_;
    raster.inputs = {source};
    raster.regions = std::move(regions);
    raster.output = add({program_.values[static_cast<std::size_t>(source)].dtype, std::move(shape), {}, -1, {}}, {&source, 1});
    program_.ops.push_back(std::move(raster));
    ++program_.rasters_made;
    return program_.ops.back().output;
  }

  // Adds a value that is computed from the values `from`.
  Ref add(ProgramValue value, std::span<const Ref> from = {}) {
    if (program_.values.size() >= kMaxProgramValues)
      throw Error(ErrorKind::unsupported,
                  "the plan needs more than " + std::to_string(kMaxProgramValues) + " intermediate tensors");
    check_fits(value.dtype, value.shape);
    std::vector<int> origins;
    if (value.input >= 0) origins.push_back(value.input);
    for (const Ref ref : from)
      if (ref != kAbsent)
        origins.insert(origins.end(), origins_[static_cast<std::size_t>(ref)].begin(),
                       origins_[static_cast<std::size_t>(ref)].end());
    std::sort(origins.begin(), origins.end());
    origins.erase(std::unique(origins.begin(), origins.end()), origins.end());
    origins_.push_back(std::move(origins));
    program_.values.push_back(std::move(value));
    return static_cast<Ref>(program_.values.size() - 1);
  }

  Operand operand(Ref tensor) const override {
    if (tensor == kAbsent) return Operand::none();
    const ProgramValue& value = program_.values[static_cast<std::size_t>(tensor)];
    return {value.dtype, value.shape, value.constant.storage() != nullptr ? &value.constant : nullptr, false};
  }

  // A constant that is computed once an operator other than Conv, which search packs, reads it.
  Ref constant(const Value& value) {
    if (value.scaled == nullptr) return constant(value.constant);
    ProgramValue added{value.dtype, value.shape, {}, -1, {}};
    added.scaled = value.scaled;
    return add(std::move(added));
  }
  void compute_scaled(Ref ref, PackedWeights& weights) {
    if (ref != kAbsent) program_.values[static_cast<std::size_t>(ref)].compute_scaled(weights);
  }

  Tensor value(Ref tensor, const std::string& what) const override {
    if (!program_.values[static_cast<std::size_t>(tensor)].is_constant()) need(tensor, what + " must be known before running");
    return program_.values[static_cast<std::size_t>(tensor)].constant;
  }

  Ref constant(Tensor value) override {
    ProgramValue added{value.dtype(), value.shape(), {}, -1, {}};
    added.constant = std::move(value);
    return add(std::move(added));
  }

  std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) override {
    return emit(*find_operator(op), inputs, attributes, outputs);
  }

  std::vector<Ref> emit(const OpDef& op, const std::vector<Ref>& inputs, const Attributes& attributes, int outputs) {
    std::vector<Operand> operands;
    bool constants = true;
    for (const Ref input : inputs) {
      operands.push_back(operand(input));
      check_real(operands.back().dtype);
      constants = constants && (operands.back().absent || operands.back().constant != nullptr);
    }
    const auto atomic = [&](const auto&) {
      if (differentiated_ && takes_epilogue(op.name) && (inputs.size() > kBias || attributes.has("activation")))
        return emit_without_epilogue(op, inputs, attributes);
      try {
        return emit_atomic(op, inputs, operands, attributes, constants);
      } catch (const ValueNeeded& error) {
        need(inputs[error.operand()], error.what());
      }
    };
    const auto in_module_only = [](const auto&) -> std::vector<Ref> {
      throw Error(ErrorKind::unsupported,
                  "a Session has no control flow, sequences or optionals; run the model with walle.Module");
    };
    return std::visit(
        Overloaded{
            [&](const ListedKernel& kernel) { return atomic(kernel); }, [&](const OwnKernel& kernel) { return atomic(kernel); },
            [&](const DataDependent&) {
              if (!constants)
                throw Error(ErrorKind::unsupported, "the shape of its output depends on data; run the model with walle.Module");
              return fold(op, inputs, attributes, outputs);
            },
            [&](const TransformRule& rule) {
              try {
                return emit_transform(op, rule, inputs, operands, attributes, outputs, constants);
              } catch (const ValueNeeded& error) {
                if (rule.at_run_time == nullptr) need(inputs[error.operand()], error.what());
                return rule.at_run_time(*this, inputs, attributes, outputs);
              }
            },
            [&](const CompositeRule& rule) {
              if (!constants && may_be_whole(op) && kernels_.has_composite(op, operands, attributes, outputs))
                return emit_step(op, inputs, {operands[0].dtype, operands[0].shape}, attributes);
              return rule.decompose(*this, inputs, attributes, outputs);
            },
            [&](const ControlFlow& flow) { return in_module_only(flow); },
            [&](const SequenceRule& rule) { return in_module_only(rule); },
            [&](const Differentiation&) -> std::vector<Ref> {
              throw Error(ErrorKind::model, "Gradient is a node of the graph itself only");
            }},
        op.kind);
  }

 private:
  // Whether a composite may stay one op, of a kernel of its own.
  bool may_be_whole(const OpDef& op) const noexcept {
    if (differentiated_) return find_gradient(op.name) != nullptr;
    return op.fused() != nullptr && !op.fused()->for_gradients;
  }

  // Emits bias, residual and activation as operators; fusion joins those again that the gradients leave alone.
  std::vector<Ref> emit_without_epilogue(const OpDef& op, const std::vector<Ref>& inputs, const Attributes& attributes) {
    Attributes plain;
    for (const auto& [name, value] : attributes.items())
      if (name != "activation") plain.set(name, value);
    Ref result = emit(op, {inputs[0], inputs[1]}, plain, 1)[0];
    if (inputs.size() > kBias && inputs[kBias] != kAbsent) {
      Dims shape = operand(inputs[kBias]).shape;
      if (op.name == "Conv") shape.resize(operand(result).shape.size() - 1, 1);  // channels come before the spatial axes
      result = one("Add", {result, one("Reshape", {inputs[kBias]}, {{"shape", std::move(shape)}})});
    }
    if (inputs.size() > kResidual && inputs[kResidual] != kAbsent) result = one("Add", {result, inputs[kResidual]});
    const std::string activation = attributes.get_string("activation", "");
    if (!activation.empty()) {
      read_epilogue(attributes, false, false);  // refuses what no product applies
      result = one(activation, {result});
    }
    return {result};
  }

  [[noreturn]] void need(Ref tensor, const std::string& what) const {
    const std::vector<int>& origins = origins_[static_cast<std::size_t>(tensor)];
    if (origins.empty()) throw Error(ErrorKind::unsupported, what);
    throw InputsNeeded(origins, 0, what);
  }

  // Refuses a tensor that no machine can hold, before anything is allocated for its elements; a dimension of 0 counts as 1.
  static void check_fits(DType dtype, const Dims& shape) {
    if (shape.size() > kMaxProgramRank)
      throw Error(ErrorKind::shape, "a tensor of " + std::to_string(shape.size()) + " dimensions; at most " +
                                        std::to_string(kMaxProgramRank) + " are supported");
    Dims least = shape;
    std::replace(least.begin(), least.end(), std::int64_t{0}, std::int64_t{1});
    if (static_cast<std::size_t>(element_count(least)) * item_size(dtype) > storage_limit())
      throw Error(ErrorKind::shape, "a tensor of shape " + to_string(shape) + " and " + std::string(dtype_name(dtype)) +
                                        " needs more memory than the machine has");
  }

  // Composites and plans are written for real numbers.
  static void check_real(DType dtype) {
    if (is_complex(dtype))
      throw Error(ErrorKind::dtype, "a model does not compute " + std::string(dtype_name(dtype)) +
                                        "; give it the real and imaginary parts, as ONNX's DFT has them, or use walle.np");
  }

  static bool small(DType dtype, const Dims& shape) {
    return element_count(shape) <= kMaxFoldedBytes / static_cast<std::int64_t>(item_size(dtype));
  }

  // Computes a movement that reads only its fill.
  static Tensor filled(const Movement& movement) {
    Tensor result = Tensor::empty(movement.dtype, movement.shape);
    for (const Region& region : movement.regions) raster(region, movement.fill.raw(), result.raw(), item_size(movement.dtype));
    return result;
  }

  std::vector<Ref> fold(const OpDef& op, const std::vector<Ref>& inputs, const Attributes& attributes, int outputs) {
    std::vector<Tensor> tensors;
    for (const Ref input : inputs)
      tensors.push_back(input == kAbsent ? Tensor() : program_.values[static_cast<std::size_t>(input)].constant);
    std::vector<Ref> results;
    for (Tensor& tensor : evaluate(op, tensors, attributes, outputs, kernels_.host_table()))
      results.push_back(constant(std::move(tensor)));
    return results;
  }

  std::vector<Ref> emit_atomic(const OpDef& op, const std::vector<Ref>& inputs, std::span<const Operand> operands,
                               const Attributes& attributes, bool constants) {
    const TensorType type = infer_atomic(op, operands, attributes);
    check_real(type.dtype);
    check_fits(type.dtype, type.shape);
    if (constants && small(type.dtype, type.shape)) return fold(op, inputs, attributes, 1);
    if (!op.reduces()) return emit_step(op, inputs, type, attributes);
    std::vector<std::size_t> axes = reduced_axes(op, operands, attributes);  // the operands end where a value is added
    const std::vector<Ref> result = emit_step(op, {inputs[0]}, type, attributes);
    program_.ops.back().axes = std::move(axes);
    return result;
  }

  // Adds one op to the program: an atomic operator, or a composite with its own kernel.
  std::vector<Ref> emit_step(const OpDef& op, const std::vector<Ref>& inputs, TensorType type, const Attributes& attributes) {
    ProgramOp made;
    made.name = node_;
    made.op = &op;
    made.inputs = inputs;
    made.attributes = attributes;
    const auto has = [&](std::size_t operand) { return operand < inputs.size() && inputs[operand] != kAbsent; };
    if (takes_epilogue(op.name)) made.epilogue = read_epilogue(attributes, has(kBias), has(kResidual));
    made.output = add({type.dtype, std::move(type.shape), {}, -1, {}}, inputs);
    program_.ops.push_back(std::move(made));
    return {program_.ops.back().output};
  }

  std::vector<Ref> emit_transform(const OpDef& op, const TransformRule& rule, const std::vector<Ref>& inputs,
                                  std::span<const Operand> operands, const Attributes& attributes, int outputs, bool constants) {
    auto movements = rule.make(operands, attributes, outputs);
    bool fits = true;
    for (const Movement& movement : movements) check_fits(movement.dtype, movement.shape);
    for (const Movement& movement : movements) fits = fits && small(movement.dtype, movement.shape);
    if (constants && fits) return fold(op, inputs, attributes, outputs);
    std::vector<Ref> results;
    for (Movement& movement : movements) {
      if (small(movement.dtype, movement.shape) && !movement.regions.empty() &&
          std::all_of(movement.regions.begin(), movement.regions.end(),
                      [](const Region& region) { return region.source == Movement::kFill; })) {
        results.push_back(constant(filled(movement)));
        continue;
      }
      ProgramOp raster;
      raster.name = node_;
      raster.inputs = inputs;
      raster.regions = std::move(movement.regions);
      if (movement.fill.storage()) {
        raster.inputs.push_back(constant(movement.fill));
        for (Region& region : raster.regions)
          if (region.source == Movement::kFill) region.source = static_cast<int>(raster.inputs.size() - 1);
      }
      raster.output = add({movement.dtype, movement.shape, {}, -1, {}}, inputs);
      results.push_back(raster.output);
      program_.ops.push_back(std::move(raster));
      ++program_.rasters_made;
    }
    return results;
  }

  Program& program_;
  std::vector<std::vector<int>> origins_;  // by value: the graph's inputs that it depends on
  const KernelSet& kernels_;
  const bool differentiated_;
  std::string node_;
};

// Emits the gradients that a node Gradient asks for: of its first input, by the others.
std::vector<Emitter::Ref> lower_gradient(Lowering& lowering, const Graph& graph, const Node& node,
                                         const std::vector<Emitter::Ref>& inputs) {
  if (std::find(inputs.begin(), inputs.end(), Emitter::kAbsent) != inputs.end())
    throw Error(ErrorKind::model, "an input is missing");
  std::vector<std::string> names;
  for (const int input : node.inputs) names.push_back(graph.values[static_cast<std::size_t>(input)].name);
  const std::span<const Emitter::Ref> given(inputs);
  return differentiate(lowering, given[0], given.subspan(1), std::span<const std::string>(names).subspan(1));
}

// Emits the nodes of a graph, or of the branch of an If of the graph around, whose node `around` it is.
void lower_nodes(Lowering& lowering, const Graph& graph, std::vector<Emitter::Ref>& refs, std::optional<std::size_t> around);

// Emits the branch that the constant condition of an If chooses.
std::vector<Emitter::Ref> lower_branch(Lowering& lowering, const Node& node, const std::vector<Emitter::Ref>& refs,
                                       Emitter::Ref condition, std::size_t around) {
  const Operand known = lowering.operand(condition);
  if (known.absent || known.constant == nullptr || known.dtype != DType::b8 || known.constant->size() != 1)
    throw Error(ErrorKind::unsupported,
                "a Session has no control flow, and the condition is not known before running; run the model with walle.Module");
  const Graph& branch = *node.graph(*known.constant->data<bool>() ? "then_branch" : "else_branch");
  std::vector<Emitter::Ref> inner(branch.values.size(), Emitter::kAbsent), results;
  for (std::size_t i = 0; i < branch.values.size(); ++i)
    if (branch.values[i].kind == ValueKind::outer) inner[i] = refs[static_cast<std::size_t>(branch.values[i].outer)];
  lower_nodes(lowering, branch, inner, around);
  for (const Output& output : branch.outputs) results.push_back(inner[static_cast<std::size_t>(output.value)]);
  return results;
}

void lower_nodes(Lowering& lowering, const Graph& graph, std::vector<Emitter::Ref>& refs, std::optional<std::size_t> around) {
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    if (graph.values[i].kind == ValueKind::constant) refs[i] = lowering.constant(graph.values[i]);
  for (std::size_t at = 0; at < graph.nodes.size(); ++at) {
    throw_if_stopped();
    const Node& node = graph.nodes[at];
    lowering.set_node(node.name);
    std::vector<Emitter::Ref> inputs;
    for (const int input : node.inputs) inputs.push_back(input < 0 ? Emitter::kAbsent : refs[static_cast<std::size_t>(input)]);
    try {
      if (node.op->name != "Conv")
        for (const Emitter::Ref input : inputs) lowering.compute_scaled(input, *graph.packed);
      const bool branches = node.op->name == "If" && !inputs.empty();
      const auto results = branches ? lower_branch(lowering, node, refs, inputs[0], around.value_or(at))
                           : node.op->as<Differentiation>() != nullptr
                               ? lower_gradient(lowering, graph, node, inputs)
                               : lowering.emit(*node.op, inputs, node.attributes, static_cast<int>(node.outputs.size()));
      if (results.size() < node.outputs.size())
        throw Error(ErrorKind::model,
                    "it has " + std::to_string(results.size()) + " outputs, not " + std::to_string(node.outputs.size()));
      for (std::size_t i = 0; i < node.outputs.size(); ++i) {
        if (results[i] == Emitter::kAbsent) throw Error(ErrorKind::unsupported, "it has no output " + std::to_string(i));
        refs[static_cast<std::size_t>(node.outputs[i])] = results[i];
      }
    } catch (const InputsNeeded& needed) {
      throw InputsNeeded(needed.inputs(), around.value_or(at), node.title() + ": " + needed.what());
    } catch (const Error& error) {
      throw Error(error.kind(), node.title() + ": " + error.what());
    } catch (const std::bad_alloc& error) {
      throw OutOfMemory(node.title(), error);
    }
  }
}

}  // namespace

Program lower(const Graph& graph, std::span<const TensorType> types, std::span<const Tensor> given, const KernelSet& kernels) {
  Program program;
  const bool differentiated = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                          [](const Node& node) { return node.op->as<Differentiation>() != nullptr; });
  program.differentiated = differentiated;
  Lowering lowering(program, kernels, differentiated);
  std::vector<Emitter::Ref> refs(graph.values.size(), Emitter::kAbsent);
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const bool known = i < given.size() && given[i].storage() != nullptr;
    refs[static_cast<std::size_t>(graph.inputs[i])] =
        known ? lowering.constant(given[i]) : lowering.add({types[i].dtype, types[i].shape, {}, static_cast<int>(i), {}});
  }
  lower_nodes(lowering, graph, refs, std::nullopt);
  for (const Output& output : graph.outputs) program.outputs.push_back(refs[static_cast<std::size_t>(output.value)]);
  return program;
}

}  // namespace walle
