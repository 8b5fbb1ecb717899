#include "operators/eager.h"

#include <algorithm>
#include <cstring>

#include "atomic/conversion.h"
#include "atomic/raster_step.h"
#include "core/fault.h"
#include "core/stop.h"

namespace walle {

namespace {

Operand operand_of(const Tensor& tensor) {
  if (!tensor.storage()) return Operand::none();
  return {tensor.dtype(), tensor.shape(), &tensor, false};
}

std::vector<Operand> operands_of(std::span<const Tensor> tensors) {
  std::vector<Operand> operands;
  operands.reserve(tensors.size());
  for (const Tensor& tensor : tensors) operands.push_back(operand_of(tensor));
  return operands;
}

Tensor run_atomic(const OpDef& op, std::span<const Tensor> given, const Attributes& attributes, const Table& table) {
  const std::vector<Operand> operands = operands_of(given);
  const TensorType type = infer_atomic(op, operands, attributes);
  std::vector<std::size_t> axes;
  if (op.reduces()) axes = reduced_axes(op, operands, attributes);
  std::vector<Tensor> dense;
  const auto strided = [](const Tensor& input) { return !input.contiguous(); };
  // Own kernels take contiguous operands, as in a session.
  if (op.as<OwnKernel>() != nullptr && std::any_of(given.begin(), given.end(), strided)) {
    for (const Tensor& input : given) dense.push_back(contiguous(input));
    given = dense;
  }
  std::vector<Layout> layouts;
  std::vector<std::byte*> addresses;
  layouts.reserve(given.size());
  addresses.reserve(given.size());
  for (const Tensor& input : given) {
    layouts.push_back(
        {input.dtype(), input.shape(), input.strides(), input.storage() ? &input : nullptr, input.storage() == nullptr});
    addresses.push_back(input.raw());
  }
  const auto has = [&](std::size_t operand) { return operand < layouts.size() && !layouts[operand].absent; };
  const Epilogue epilogue = takes_epilogue(op.name) ? read_epilogue(attributes, has(kBias), has(kResidual)) : Epilogue();
  const auto step = make_step(op, layouts, type, axes, attributes, table, epilogue);
  Tensor result = Tensor::empty(type.dtype, type.shape);
  std::shared_ptr<Storage> scratch;
  if (step->scratch_bytes() > 0) scratch = Storage::allocate(step->scratch_bytes());
  const FaultScope faults;
  step->run(addresses.data(), result.raw(), scratch ? scratch->data() : nullptr);
  throw_if_stopped();  // what it gave may not be whole
  if (const char* fault = faults.what()) throw Error(ErrorKind::shape, std::string(op.name) + ": " + fault);
  return result;
}

std::vector<Tensor> run_transform(const TransformRule& rule, std::span<const Tensor> inputs, const Attributes& attributes,
                                  int outputs, const Table& table) {
  const auto movements = rule.make(operands_of(inputs), attributes, outputs);
  std::vector<Tensor> sources(inputs.size()), results;
  StopPoll poll;  // polled between small regions; a large one is moved in parts
  for (const Movement& movement : movements) {
    Tensor result = Tensor::empty(movement.dtype, movement.shape);
    for (const Region& region : movement.regions) {
      if (!poll.proceed(64 + region.count())) break;
      const std::byte* source = movement.fill.raw();
      if (region.source != Movement::kFill) {
        const auto index = static_cast<std::size_t>(region.source);
        if (!sources[index].storage()) sources[index] = contiguous(inputs[index]);
        source = sources[index].raw();
      }
      move_region(region, source, result.raw(), item_size(movement.dtype), table);
    }
    throw_if_stopped();  // what was moved may not be whole
    results.push_back(std::move(result));
  }
  return results;
}

// Computes a decomposition at once on tensors.
class EagerEmitter final : public Emitter {
 public:
  explicit EagerEmitter(const Table& table) : table_(table) {}

  Operand operand(Ref tensor) const override {
    if (tensor == kAbsent) return Operand::none();
    return operand_of(tensors_[static_cast<std::size_t>(tensor)]);
  }
  std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) override {
    std::vector<Tensor> values;
    for (const Ref input : inputs) values.push_back(at(input));
    std::vector<Ref> refs;
    for (Tensor& tensor : evaluate(*find_operator(op), values, attributes, outputs, table_))
      refs.push_back(constant(std::move(tensor)));
    return refs;
  }
  Ref constant(Tensor value) override {
    tensors_.push_back(std::move(value));
    return static_cast<Ref>(tensors_.size() - 1);
  }
  Tensor value(Ref tensor, const std::string&) const override { return tensors_[static_cast<std::size_t>(tensor)]; }
  Tensor at(Ref tensor) const { return tensor == kAbsent ? Tensor() : tensors_[static_cast<std::size_t>(tensor)]; }

 private:
  const Table& table_;
  std::vector<Tensor> tensors_;
};

std::vector<Tensor> run_decomposed(CompositeFn decompose, std::span<const Tensor> inputs, const Attributes& attributes,
                                   int outputs, const Table& table) {
  EagerEmitter emitter(table);
  std::vector<Emitter::Ref> refs;
  for (const Tensor& input : inputs) refs.push_back(input.storage() ? emitter.constant(input) : Emitter::kAbsent);
  std::vector<Tensor> results;
  for (const Emitter::Ref ref : decompose(emitter, refs, attributes, outputs)) results.push_back(emitter.at(ref));
  return results;
}

}  // namespace

void check_inputs(const OpDef& op, std::span<const Tensor> inputs) {
  const auto count = static_cast<int>(inputs.size());
  if (count < op.min_inputs || count > op.max_inputs)
    throw Error(ErrorKind::model, std::string(op.name) + " got " + std::to_string(count) + " inputs; it takes " +
                                      std::to_string(op.min_inputs) +
                                      (op.max_inputs > op.min_inputs ? " to " + std::to_string(op.max_inputs) : ""));
  for (int i = 0; i < op.min_inputs; ++i)
    if (!inputs[static_cast<std::size_t>(i)].storage())
      throw Error(ErrorKind::model, std::string(op.name) + ": input " + std::to_string(i) + " is missing");
}

std::vector<Tensor> evaluate(const OpDef& op, std::span<const Tensor> inputs, const Attributes& attributes, int outputs,
                             const Table& table) {
  check_inputs(op, inputs);
  const auto atomic = [&](const auto&) { return std::vector<Tensor>{run_atomic(op, inputs, attributes, table)}; };
  const auto in_module_only = [&](const auto&) -> std::vector<Tensor> {
    throw Error(ErrorKind::unsupported, std::string(op.name) + " runs in a walle.Module only");
  };
  return std::visit(Overloaded{[&](const ListedKernel& kernel) { return atomic(kernel); },
                               [&](const OwnKernel& kernel) { return atomic(kernel); },
                               [&](const DataDependent& kernel) {
                                 std::vector<Tensor> dense;
                                 for (const Tensor& input : inputs) dense.push_back(input.storage() ? contiguous(input) : input);
                                 return kernel.compute(dense, attributes, outputs);
                               },
                               [&](const TransformRule& rule) {
                                 try {
                                   return run_transform(rule, inputs, attributes, outputs, table);
                                 } catch (const ValueNeeded&) {
                                   if (rule.at_run_time == nullptr) throw;
                                   return run_decomposed(rule.at_run_time, inputs, attributes, outputs, table);
                                 }
                               },
                               [&](const CompositeRule& rule) {
                                 refuse_complex(op, operands_of(inputs));
                                 return run_decomposed(rule.decompose, inputs, attributes, outputs, table);
                               },
                               [&](const ControlFlow& flow) { return in_module_only(flow); },
                               [&](const SequenceRule& rule) { return in_module_only(rule); },
                               [&](const Differentiation&) -> std::vector<Tensor> {
                                 throw Error(ErrorKind::unsupported, "Gradient runs in a walle.Session only");
                               }},
                    op.kind);
}

Tensor evaluate_one(std::string_view op, std::span<const Tensor> inputs, const Attributes& attributes) {
  return evaluate(*find_operator(op), inputs, attributes, 1, kernels())[0];
}

void assign(const Tensor& from, const Tensor& to) {
  if (from.dtype() != to.dtype())
    throw Error(ErrorKind::dtype,
                "assignment of " + std::string(dtype_name(from.dtype())) + " to " + std::string(dtype_name(to.dtype())));
  if (!to.storage() || !to.storage()->writable()) throw Error(ErrorKind::dtype, "the array is read-only; copy it first");
  for (std::size_t i = 0; i < to.shape().size() && to.size() > 0; ++i)
    if (to.shape()[i] > 1 && to.strides()[i] == 0)
      throw Error(ErrorKind::shape, "a broadcast view cannot be written; copy it first");
  if (from.shape() == to.shape() && to.size() <= kFastPathElements && from.contiguous() && to.contiguous()) {
    std::memmove(to.raw(), from.raw(), static_cast<std::size_t>(to.size()) * item_size(to.dtype()));
    return;
  }
  const Dims strides = broadcast_strides(from.shape(), from.strides(), to.shape());
  const bool same = from.storage() == to.storage() && to.size() > 0;
  const Tensor source = same ? contiguous(Tensor(from.storage(), from.dtype(), to.shape(), strides, from.offset())) : from;
  if (same && source.storage() == to.storage()) {  // contiguous already and perhaps overlapping
    const Tensor copy = Tensor::empty(from.dtype(), to.shape());
    assign(source, copy);
    return assign(copy, to);
  }
  const auto elements = [](const Tensor& tensor) {
    return tensor.storage() ? static_cast<std::int64_t>(tensor.storage()->size_bytes() / item_size(tensor.dtype())) : 0;
  };
  move_region(Region::make(0, to.shape(), same ? source.strides() : strides, source.offset(), to.strides(), to.offset(),
                           elements(source), elements(to)),
              source.storage() ? source.storage()->data() : nullptr, to.storage()->data(), item_size(to.dtype()), kernels());
  throw_if_stopped();  // what was moved may not be whole
}

Tensor contiguous(const Tensor& tensor) {
  if (tensor.contiguous()) return tensor;
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  assign(tensor, copy);
  return copy;
}

Tensor cast(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  if (tensor.size() <= kFastPathElements && tensor.contiguous()) {  // a step made ready for it would cost more than it saves
    Tensor result = Tensor::empty(dtype, tensor.shape());
    Conversion(tensor.dtype(), dtype, 0, kernels()).run(tensor.raw(), 1, result.raw(), tensor.size());
    return result;
  }
  const Tensor inputs[] = {tensor};
  return evaluate_one("Cast", inputs, {{"to", std::string(dtype_name(dtype))}});
}

}  // namespace walle
