#include "operators/forecast.h"

#include <algorithm>

#include "geometry/raster.h"
#include "operators/eager.h"

namespace walle {

namespace {

// Shapes and numbers made of them; larger values are not needed before running.
constexpr std::int64_t kMaxKnownElements = 4096;

std::vector<Operand> operands_of(std::span<const Forecast> inputs) {
  std::vector<Operand> operands;
  operands.reserve(inputs.size());
  for (const auto& [tensor, is_known] : inputs)
    operands.push_back(tensor.storage() == nullptr
                           ? Operand::none()
                           : Operand{tensor.dtype(), tensor.shape(), is_known ? &tensor : nullptr, false});
  return operands;
}

// Follows a decomposition by the types of its values.
class ForecastEmitter final : public Emitter {
 public:
  explicit ForecastEmitter(const Table& table) : table_(table) {}

  Operand operand(Ref tensor) const override {
    return tensor == kAbsent ? Operand::none() : operands_of({&values_[static_cast<std::size_t>(tensor)], 1})[0];
  }
  std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) override {
    std::vector<Forecast> values;
    for (const Ref input : inputs) values.push_back(at(input));
    std::vector<Ref> refs;
    for (Forecast& value : forecast(*find_operator(op), values, attributes, outputs, table_))
      refs.push_back(add(std::move(value)));
    return refs;
  }
  Ref constant(Tensor value) override { return add({std::move(value), true}); }
  Tensor value(Ref tensor, const std::string& what) const override {
    const Forecast& found = values_[static_cast<std::size_t>(tensor)];
    if (!found.is_known) throw ValueNeeded(static_cast<std::size_t>(tensor), what);
    return found.tensor;
  }

  Ref add(Forecast value) {
    values_.push_back(std::move(value));
    return static_cast<Ref>(values_.size() - 1);
  }
  Forecast at(Ref tensor) const { return tensor == kAbsent ? Forecast() : values_[static_cast<std::size_t>(tensor)]; }

 private:
  const Table& table_;
  std::vector<Forecast> values_;
};

// Calls decompose(emitter, inputs) and returns what it gives.
template <class F>
std::vector<Forecast> decomposed(std::span<const Forecast> inputs, const Table& table, F&& decompose) {
  ForecastEmitter emitter(table);
  std::vector<Emitter::Ref> refs;
  for (const Forecast& input : inputs) refs.push_back(input.tensor.storage() ? emitter.add(input) : Emitter::kAbsent);
  std::vector<Forecast> results;
  for (const Emitter::Ref ref : decompose(emitter, refs)) results.push_back(emitter.at(ref));
  return results;
}

Forecast moved(const Movement& movement) {
  const auto from_fill = [](const Region& region) { return region.source == Movement::kFill; };
  if (movement.regions.empty() || element_count(movement.shape) > kMaxKnownElements ||
      !std::all_of(movement.regions.begin(), movement.regions.end(), from_fill))
    return Forecast::unknown(movement.dtype, movement.shape);
  Tensor result = Tensor::empty(movement.dtype, movement.shape);
  for (const Region& region : movement.regions) raster(region, movement.fill.raw(), result.raw(), item_size(movement.dtype));
  return {std::move(result), true};
}

// Forecasts an operator of which an input is not known.
std::vector<Forecast> inferred(const OpDef& op, std::span<const Forecast> inputs, const Attributes& attributes, int outputs,
                               const Table& table) {
  const std::vector<Operand> operands = operands_of(inputs);
  const auto atomic = [&](const auto&) {
    TensorType type = infer_atomic(op, operands, attributes);
    return std::vector<Forecast>{Forecast::unknown(type.dtype, std::move(type.shape))};
  };
  const auto refused = [&](const auto&) -> std::vector<Forecast> {
    throw Error(ErrorKind::unsupported,
                std::string(op.name) + ": its outputs or their shapes depend on data, which a plan does not know");
  };
  return std::visit(
      Overloaded{
          [&](const ListedKernel& kernel) { return atomic(kernel); }, [&](const OwnKernel& kernel) { return atomic(kernel); },
          [&](const TransformRule& rule) {
            try {
              std::vector<Forecast> results;
              for (const Movement& movement : rule.make(operands, attributes, outputs)) results.push_back(moved(movement));
              return results;
            } catch (const ValueNeeded&) {
              if (rule.at_run_time == nullptr) throw;
              return decomposed(inputs, table, [&](Emitter& emitter, const std::vector<int>& refs) {
                return rule.at_run_time(emitter, refs, attributes, outputs);
              });
            }
          },
          [&](const CompositeRule& rule) {
            refuse_complex(op, operands);
            return decomposed(inputs, table, [&](Emitter& emitter, const std::vector<int>& refs) {
              return rule.decompose(emitter, refs, attributes, outputs);
            });
          },
          [&](const DataDependent& kind) { return refused(kind); }, [&](const ControlFlow& kind) { return refused(kind); },
          [&](const SequenceRule& kind) { return refused(kind); }, [&](const Differentiation& kind) { return refused(kind); }},
      op.kind);
}

}  // namespace

Forecast Forecast::unknown(DType dtype, Dims shape) {
  const Tensor zero = Tensor::empty(dtype, {});
  std::fill_n(zero.raw(), item_size(dtype), std::byte{0});
  const std::size_t rank = shape.size();
  return {Tensor(zero.storage(), dtype, std::move(shape), Dims(rank, 0), 0), false};
}

std::vector<Forecast> forecast(const OpDef& op, std::span<const Forecast> inputs, const Attributes& attributes, int outputs,
                               const Table& table) {
  std::vector<Tensor> tensors;
  for (const Forecast& input : inputs) tensors.push_back(input.tensor);
  if (std::all_of(inputs.begin(), inputs.end(), [](const Forecast& input) { return input.is_known; })) {
    std::vector<Forecast> results;
    for (Tensor& tensor : evaluate(op, tensors, attributes, outputs, table)) results.push_back({std::move(tensor), true});
    return results;
  }
  check_inputs(op, tensors);
  try {
    return inferred(op, inputs, attributes, outputs, table);
  } catch (const ValueNeeded& error) {
    throw Error(ErrorKind::unsupported, std::string(op.name) + ": " + error.what() + "; make it a constant");
  }
}

}  // namespace walle
