// A recording emitter that differentiates, and comparisons of gradient rules with central differences in float64.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "check.h"
#include "geometry/raster.h"
#include "operators/eager.h"
#include "operators/gradient/gradient.h"
#include "operators/gradient/raster.h"

namespace gradients {

using namespace walle;
using Ref = Emitter::Ref;

// Computes what is emitted at once, and records it: operators with a gradient rule, transforms, and the parts of composites.
class Tape final : public Emitter {
 public:
  struct Entry {
    const OpDef* op;
    std::vector<Ref> inputs, outputs;
    Attributes attributes;
  };

  Operand operand(Ref tensor) const override {
    if (tensor == kAbsent) return Operand::none();
    const Tensor& value = at(tensor);
    return {value.dtype(), value.shape(), &value, false};
  }
  std::vector<Ref> emit(std::string_view op, std::vector<Ref> inputs, Attributes attributes, int outputs) override {
    const OpDef& definition = *find_operator(op);
    const auto* composite = definition.as<CompositeRule>();
    if (composite != nullptr && find_gradient(op) == nullptr) return composite->decompose(*this, inputs, attributes, outputs);
    if (const auto* transform = definition.as<TransformRule>(); transform != nullptr && transform->at_run_time != nullptr)
      return transform->at_run_time(*this, inputs, attributes, outputs);
    std::vector<Tensor> values;
    for (const Ref input : inputs) values.push_back(input == kAbsent ? Tensor() : at(input));
    std::vector<Ref> refs;
    for (Tensor& result : evaluate(definition, values, attributes, outputs, kernels("scalar")))
      refs.push_back(constant(std::move(result)));
    entries_.push_back({&definition, std::move(inputs), refs, std::move(attributes)});
    return refs;
  }
  Ref constant(Tensor value) override {
    values_.push_back(std::move(value));
    return static_cast<Ref>(values_.size() - 1);
  }
  Tensor value(Ref tensor, const std::string&) const override { return at(tensor); }
  const Tensor& at(Ref tensor) const { return values_[static_cast<std::size_t>(tensor)]; }

  // Return the gradient by each of `xs` of what was recorded, where `gradient` is that of y; absent where y does not depend on x.
  std::vector<Ref> differentiate(Ref y, Ref gradient, const std::vector<Ref>& xs) {
    std::vector<Ref> gradients(values_.size(), kAbsent);
    std::vector<bool> depends(values_.size(), false);
    for (const Ref x : xs) depends[index(x)] = true;
    const std::size_t count = entries_.size();
    for (std::size_t i = 0; i < count; ++i)
      for (const Ref output : entries_[i].outputs)
        depends[index(output)] = std::any_of(entries_[i].inputs.begin(), entries_[i].inputs.end(),
                                             [&](Ref input) { return input != kAbsent && depends[index(input)]; });
    gradients[index(y)] = gradient;
    for (std::size_t i = count; i-- > 0;) {
      const Entry entry = entries_[i];  // a copy: rules record more
      for (std::size_t j = 0; j < entry.outputs.size(); ++j) {
        const Ref of_output = gradients[index(entry.outputs[j])];
        if (of_output == kAbsent) continue;
        std::vector<bool> needed;
        for (const Ref input : entry.inputs)
          needed.push_back(input != kAbsent && depends[index(input)] && is_floating(at(input).dtype()));
        const std::vector<Ref> found =
            entry.op->as<TransformRule>() != nullptr ? moved_back(entry, j, of_output) : by_rule(entry, of_output, needed);
        for (std::size_t k = 0; k < found.size(); ++k) {
          if (found[k] == kAbsent || !needed[k]) continue;
          Ref& sum = gradients[index(entry.inputs[k])];
          sum = sum == kAbsent ? found[k] : one("Add", {sum, found[k]});
        }
      }
    }
    std::vector<Ref> results;
    for (const Ref x : xs) results.push_back(gradients[index(x)]);
    return results;
  }

  std::vector<Ref> by_rule(const Entry& entry, Ref gradient, const std::vector<bool>& needed) {
    const GradientRule* rule = find_gradient(entry.op->name);
    CHECK(rule != nullptr);
    if (rule == nullptr || rule->kind == Differentiable::flat) return {};
    CHECK(rule->kind == Differentiable::by_rule);
    if (rule->make == nullptr) return {};
    std::vector<std::size_t> axes;
    std::vector<Operand> operands;
    for (const Ref input : entry.inputs) operands.push_back(operand(input));
    if (entry.op->reduces()) axes = reduced_axes(*entry.op, operands, entry.attributes);
    return rule->make({*this, entry.inputs, entry.outputs[0], gradient, entry.attributes, axes, needed});
  }

 private:
  static std::size_t index(Ref ref) { return static_cast<std::size_t>(ref); }

  std::vector<Ref> moved_back(const Entry& entry, std::size_t output, Ref gradient) {
    std::vector<Operand> operands;
    for (const Ref input : entry.inputs) operands.push_back(operand(input));
    const auto movements =
        entry.op->as<TransformRule>()->make(operands, entry.attributes, static_cast<int>(entry.outputs.size()));
    std::vector<Ref> found;
    for (std::size_t i = 0; i < entry.inputs.size(); ++i) {
      const Tensor &source = at(entry.inputs[i]), &from = at(gradient);
      const RasterGradient swapped = raster_gradient(movements[output].regions, static_cast<int>(i), source.size(), from.size());
      Tensor sum = Tensor::empty(from.dtype(), source.shape());
      std::memset(sum.raw(), 0, static_cast<std::size_t>(sum.size()) * item_size(sum.dtype()));
      Tensor layers = Tensor::empty(from.dtype(), {swapped.layers, source.size()});
      std::memset(layers.raw(), 0, static_cast<std::size_t>(layers.size()) * item_size(layers.dtype()));
      for (const Region& region : swapped.regions) raster(region, from.raw(), layers.raw(), item_size(from.dtype()));
      if (from.dtype() == DType::f64)
        for (std::int64_t k = 0; k < layers.size(); ++k) sum.data<double>()[k % source.size()] += layers.data<double>()[k];
      found.push_back(constant(std::move(sum)));
    }
    return found;
  }

  std::vector<Tensor> values_;
  std::vector<Entry> entries_;
};

inline Tensor random_tensor(std::mt19937_64& random, Dims shape, double low = 0.5, double high = 2) {
  Tensor tensor = Tensor::empty(DType::f64, std::move(shape));
  std::uniform_real_distribution<double> number(low, high);  // by default, a divisor is not near 0
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.data<double>()[i] = number(random);
  return tensor;
}

inline Tensor tensor_of(Dims shape, const std::vector<double>& numbers) {
  Tensor tensor = Tensor::empty(DType::f64, std::move(shape));
  std::copy(numbers.begin(), numbers.end(), tensor.data<double>());
  return tensor;
}

inline Tensor whole_tensor(Dims shape, const Dims& numbers) {
  Tensor tensor = Tensor::empty(DType::i64, std::move(shape));
  std::copy(numbers.begin(), numbers.end(), tensor.data<std::int64_t>());
  return tensor;
}

inline Tensor copy_of(const Tensor& tensor) {
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  std::memcpy(copy.raw(), tensor.raw(), static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype()));
  return copy;
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) sum += a.data<double>()[i] * b.data<double>()[i];
  return sum;
}

inline bool is_close(double a, double b, double scale) { return std::fabs(a - b) < 2e-6 * (1 + std::fabs(scale)); }

inline std::set<std::string_view> compared;  // operators whose rule was compared with differences

// Compares the rule of an operator with central differences, by all inputs of float64 together and by each alone.
inline void compare(std::mt19937_64& random, std::string_view op, const std::vector<Tensor>& given,
                    const Attributes& attributes = {}, std::vector<bool> needed = {}) {
  compared.insert(op);
  const GradientRule* rule = find_gradient(op);
  CHECK(rule != nullptr && rule->kind == Differentiable::by_rule);
  if (rule == nullptr || rule->kind != Differentiable::by_rule) return;
  std::vector<Tensor> inputs;
  for (const Tensor& tensor : given) inputs.push_back(tensor.storage() ? copy_of(tensor) : tensor);
  const auto forward = [&] { return evaluate_one(op, inputs, attributes); };
  const Tensor result = forward(), gradient = random_tensor(random, result.shape(), -2, 2);
  const int before = check::failures;
  if (needed.empty())
    for (const Tensor& tensor : inputs) needed.push_back(tensor.storage() != nullptr && tensor.dtype() == DType::f64);
  const auto by_rule = [&](const std::vector<bool>& asked, std::vector<Tensor>& found) {
    Tape tape;
    std::vector<Ref> refs;
    for (const Tensor& input : inputs) refs.push_back(input.storage() ? tape.constant(input) : Emitter::kAbsent);
    const Ref at_result = tape.constant(result), at_gradient = tape.constant(gradient);
    const auto made = tape.by_rule({find_operator(op), refs, {at_result}, attributes}, at_gradient, asked);
    CHECK(made.size() == inputs.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      const bool absent = made[i] == Emitter::kAbsent;
      CHECK(asked[i] || absent);
      found.push_back(absent ? Tensor() : tape.at(made[i]));
      if (!absent) CHECK(found[i].shape() == inputs[i].shape() && found[i].dtype() == inputs[i].dtype());
    }
  };
  std::vector<Tensor> found;
  by_rule(needed, found);
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!needed[i]) continue;
    std::vector<bool> alone(needed.size(), false);
    alone[i] = true;
    std::vector<Tensor> one;
    by_rule(alone, one);
    for (std::int64_t j = 0; j < inputs[i].size(); ++j) {
      double& number = inputs[i].data<double>()[j];
      const double at = number;
      number = at + kStep;
      const double above = dot(forward(), gradient);
      number = at - kStep;
      const double below = dot(forward(), gradient);
      number = at;
      const double expected = (above - below) / (2 * kStep);
      CHECK(is_close(found[i].storage() ? found[i].data<double>()[j] : 0, expected, above));
      CHECK(is_close(one[i].storage() ? one[i].data<double>()[j] : 0, expected, above));
    }
  }
  if (check::failures != before)
    std::fprintf(stderr, "  in %s of %s\n", std::string(op).c_str(), to_string(result.shape()).c_str());
}

inline void compare(std::mt19937_64& random, std::string_view op, const std::vector<Dims>& shapes,
                    const Attributes& attributes = {}) {
  std::vector<Tensor> inputs;
  for (const Dims& shape : shapes) inputs.push_back(random_tensor(random, shape));
  compare(random, op, inputs, attributes);
}

// Compares the gradients of an operator, or of the parts of a composite, and the gradient of `order` - 1 gradients of them, with
// central differences by all inputs of float64.
inline void compare_recorded(std::mt19937_64& random, std::string_view op, const std::vector<Tensor>& given,
                             const Attributes& attributes = {}, int order = 1) {
  std::vector<Tensor> inputs;
  for (const Tensor& tensor : given) inputs.push_back(tensor.storage() ? copy_of(tensor) : tensor);
  std::vector<Tensor> cotangents;
  const int before = check::failures;
  // Records y, or the gradient of <y, v>, or of that gradient, ...: returns it and, for the last order, its own gradients.
  const auto record = [&](Tape& tape, std::vector<Ref>& xs) {
    std::vector<Ref> refs;
    xs.clear();
    for (const Tensor& input : inputs) {
      refs.push_back(input.storage() ? tape.constant(input) : Emitter::kAbsent);
      if (input.storage() && input.dtype() == DType::f64) xs.push_back(refs.back());
    }
    Ref value = tape.emit(op, refs, attributes, 1)[0];
    for (std::size_t i = 0; i < static_cast<std::size_t>(order); ++i) {
      if (cotangents.size() <= i) cotangents.push_back(random_tensor(random, Dims(tape.at(value).shape()), -1, 1));
      if (i + 1 == static_cast<std::size_t>(order)) break;
      value = tape.differentiate(value, tape.constant(cotangents[i]), {xs[0]})[0];
    }
    return value;
  };
  Tape tape;
  std::vector<Ref> xs, ignored;
  const Ref value = record(tape, xs);
  const auto found = tape.differentiate(value, tape.constant(cotangents.back()), xs);
  constexpr double kStep = 1e-5;
  std::size_t x = 0;
  for (Tensor& input : inputs) {
    if (!input.storage() || input.dtype() != DType::f64) continue;
    const Tensor gradient = found[x] == Emitter::kAbsent ? Tensor() : tape.at(found[x]);
    ++x;
    for (std::int64_t j = 0; j < input.size(); ++j) {
      double& number = input.data<double>()[j];
      const double at = number;
      const auto moved = [&](double to) {
        number = to;
        Tape again;
        return dot(again.at(record(again, ignored)), cotangents.back());
      };
      const double above = moved(at + kStep), below = moved(at - kStep);
      number = at;
      CHECK(is_close(gradient.storage() ? gradient.data<double>()[j] : 0, (above - below) / (2 * kStep), above));
    }
  }
  if (check::failures != before) std::fprintf(stderr, "  in order %d of %s\n", order, std::string(op).c_str());
}

}  // namespace gradients
