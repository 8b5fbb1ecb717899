#include "run/session.h"
#include "run/execute.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/work_context.h"
#include "rewrite/rewrite.h"

namespace walle {

namespace {

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  if (tensor.size() > 0)
    std::memcpy(copy.raw(), tensor.raw(), static_cast<std::size_t>(tensor.size()) * item_size(tensor.dtype()));
  return copy;
}

Error needs_a_module(const Node& node) {
  return {ErrorKind::unsupported, "node '" + node.name + "' is operator '" + std::string(node.op->name) +
                                      "', which a Session does not run; run the model with walle.Module"};
}

// Whether what decides about the node (the condition of an If, all inputs of an operator whose shapes depend on data) is
// constant.
bool is_known(const Graph& graph, const Node& node) {
  const auto deciding =
      std::span(node.inputs).first(node.op->name == "If" ? std::min<std::size_t>(1, node.inputs.size()) : node.inputs.size());
  return std::all_of(deciding.begin(), deciding.end(), [&](int input) {
    return input < 0 || graph.values[static_cast<std::size_t>(input)].kind == ValueKind::constant;
  });
}

}  // namespace

bool may_be_known(const Node& node) noexcept {
  return !node.op->module_only() || node.op->name == "If" || node.op->as<DataDependent>() != nullptr;
}

void check_input(const Value& input, const Tensor& given) {
  if (!input.any_dtype && given.dtype() != input.dtype)
    throw Error(ErrorKind::dtype, "input '" + input.name + "' is " + std::string(dtype_name(given.dtype())) +
                                      ", the model takes " + std::string(dtype_name(input.dtype)) + "; convert it with astype");
  if (!given.contiguous()) throw Error(ErrorKind::shape, "input '" + input.name + "' is not contiguous");
  if (input.any_rank) return;
  bool fits = given.shape().size() == input.shape.size();
  for (std::size_t axis = 0; fits && axis < input.shape.size(); ++axis)
    fits = input.shape[axis] == -1 || input.shape[axis] == given.shape()[axis];
  if (!fits)
    throw Error(ErrorKind::shape,
                "input '" + input.name + "' has shape " + to_string(given.shape()) + ", the model takes " +
                    to_string(input.shape) +
                    (std::find(input.shape.begin(), input.shape.end(), -1) != input.shape.end() ? " (-1: any)" : ""));
}

bool known(const Value& input) {
  return input.kind == ValueKind::input && !input.any_dtype && !input.any_rank &&
         std::find(input.shape.begin(), input.shape.end(), -1) == input.shape.end();
}

Session::Session(std::shared_ptr<const Graph> graph, const Target& target, bool merging)
    : graph_(std::move(graph)),
      planned_(rewritten(graph_)),
      target_(target),
      merging_(merging),
      workspaces_(target.device(), target.threads) {
  const Node* unsure = nullptr;  // what only a plan can show to be known before running
  for (const Node& node : planned_->nodes) {
    if (!node.op->module_only()) continue;
    if (!may_be_known(node)) throw needs_a_module(node);
    if (!is_known(*planned_, node)) unsure = &node;
  }
  std::vector<TensorType> types;
  bool all = true;
  for (const int input : graph_->inputs) {
    const Value& value = graph_->values[static_cast<std::size_t>(input)];
    if (value.kind == ValueKind::object)
      throw Error(ErrorKind::unsupported,
                  "input '" + value.name + "' is a sequence or an optional; run the model with walle.Module");
    all = all && known(value);
    types.push_back({value.dtype, value.shape});
  }
  needed_.resize(graph_->inputs.size(), false);
  if (!all && unsure != nullptr) throw needs_a_module(*unsure);
  const WorkspacePool::Run first(workspaces_, {});  // makes threads and memory while the model is opened
  if (!all) return;
  try {
    first.workspace().reserve(*plans_.add(make_plan(*planned_, std::move(types), {}, target_, merging_)));
  } catch (const InputsNeeded& needed) {
    if (unsure != nullptr) throw needs_a_module(*unsure);
    for (const int input : needed.inputs()) needed_[static_cast<std::size_t>(input)] = true;
  }
}

std::shared_ptr<const Plan> Session::plan_for(std::span<const Tensor> inputs) {
  if (auto plan = plans_.find(inputs)) return plan;
  std::optional<Loading> loading;
  if (plans_.last() == nullptr) loading.emplace();  // the first plan is part of opening the model
  std::vector<TensorType> types;
  for (std::size_t i = 0; i < inputs.size(); ++i) types.push_back({inputs[i].dtype(), inputs[i].shape()});
  for (;;) {  // each attempt needs at least one more input
    std::vector<bool> needed;
    {
      const std::lock_guard lock(mutex_);
      needed = needed_;
    }
    std::vector<Tensor> given;
    if (std::find(needed.begin(), needed.end(), true) != needed.end()) {
      given.resize(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (needed[i]) given[i] = copy_of(inputs[i]);
    }
    try {
      return plans_.add(make_plan(*planned_, types, std::move(given), target_, merging_));
    } catch (const InputsNeeded& further) {
      const std::lock_guard lock(mutex_);
      for (const int input : further.inputs()) needed_[static_cast<std::size_t>(input)] = true;
    }
  }
}

void Session::check(std::span<const Tensor> inputs) const {
  if (inputs.size() != graph_->inputs.size())
    throw Error(ErrorKind::model,
                "the model takes " + std::to_string(graph_->inputs.size()) + " inputs, not " + std::to_string(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check_input(graph_->values[static_cast<std::size_t>(graph_->inputs[i])], inputs[i]);
  for (const int input : target_.updates.replaced)
    if (input >= 0 && !inputs[static_cast<std::size_t>(input)].storage()->writable())
      throw Error(ErrorKind::model,
                  "input '" + graph_->values[static_cast<std::size_t>(graph_->inputs[static_cast<std::size_t>(input)])].name +
                      "' is updated in place and is read-only; copy it");
  if (!target_.updates.empty()) check_apart(inputs);
}

void Session::check_apart(std::span<const Tensor> inputs) const {
  struct Stretch {
    const std::byte *first, *last;
    std::size_t input;
    bool is_updated;
  };
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(inputs[i].size()) * item_size(inputs[i].dtype());
    const auto& replaced = target_.updates.replaced;
    const bool is_updated = std::find(replaced.begin(), replaced.end(), static_cast<int>(i)) != replaced.end();
    if (bytes > 0) stretches.push_back({inputs[i].raw(), inputs[i].raw() + bytes, i, is_updated});
  }
  std::sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) { return a.first < b.first; });
  const Stretch *any = nullptr, *updated = nullptr;  // those before that end last
  for (const Stretch& one : stretches) {
    const Stretch* const other = one.is_updated ? any : updated;
    if (other != nullptr && other->last > one.first) {
      const auto name = [&](const Stretch& of) {
        return "'" + graph_->values[static_cast<std::size_t>(graph_->inputs[of.input])].name + "'";
      };
      const Stretch &changed = one.is_updated ? one : *other, &read = one.is_updated ? *other : one;
      throw Error(ErrorKind::model, "input " + name(changed) + " is updated in place and shares memory with the input " +
                                        name(read) + "; copy one of them");
    }
    if (any == nullptr || any->last < one.last) any = &one;
    if (one.is_updated && (updated == nullptr || updated->last < one.last)) updated = &one;
  }
}

std::vector<Tensor> Session::run(std::span<const Tensor> inputs, const StopLimits& limits) {
  check(inputs);
  const WorkspacePool::Run active(workspaces_, limits);
  const auto plan = plan_for(inputs);
  return run_plan(*plan, inputs, active.workspace());
}

std::vector<Tensor> Session::run(std::span<const Tensor> inputs, std::vector<double>& us, const StopLimits& limits) {
  check(inputs);
  const WorkspacePool::Run active(workspaces_, limits);
  const auto plan = plan_for(inputs);
  us.assign(plan->ops.size(), 0);
  return run_plan(*plan, inputs, active.workspace(), us.data());
}

std::string Session::find_nonfinite(std::span<const Tensor> inputs) {
  check(inputs);
  const WorkspacePool::Run active(workspaces_, {});
  const auto joined = plan_for(inputs);
  Target target = target_;
  target.updates = {};  // the inputs stay
  // Unmerged, so that each operator is a step of its own.
  const auto plan = make_plan(*planned_, joined->inputs, joined->given, target, false);
  return walle::find_nonfinite(*planned_, *plan, inputs, active.workspace());
}

std::shared_ptr<const Plan> Session::plan() const { return plans_.last(); }

}  // namespace walle
