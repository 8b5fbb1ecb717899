// Bindings of sessions, modules, backends and their rates.
#include <pybind11/stl.h>

#include <set>

#include "atomic/rates.h"
#include "bindings/bind.h"
#include "bindings/bind_graph.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/released_gil.h"
#include "core/work_context.h"
#include "operators/eager.h"
#include "rewrite/rewrite.h"
#include "run/module.h"
#include "run/session.h"
#include "run/target.h"

namespace py = pybind11;

namespace walle {

namespace {

// A shape as a Python tuple; a dimension that is not known is None.
py::tuple shape_tuple(const Dims& shape) {
  py::tuple result(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i)
    result[i] = shape[i] < 0 ? py::object(py::none()) : py::object(py::int_(shape[i]));
  return result;
}

// Names of a model's inputs and outputs as Python strings, created once so that a call creates none.
class ModelNames {
 public:
  explicit ModelNames(const Graph& graph) : graph_(graph) {
    for (const int input : graph.inputs) inputs_.emplace_back(graph.values[static_cast<std::size_t>(input)].name);
    for (const Output& output : graph.outputs) outputs_.emplace_back(output.name);
  }

  const std::vector<py::str>& outputs() const noexcept { return outputs_; }

  // Calls take(model's input, given value) for each input, in the model's order. Throws Error (model) for other names.
  template <class F>
  void each_input(const py::dict& given, F&& take) const {
    if (given.size() != inputs_.size()) refuse(given);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      PyObject* value = PyDict_GetItemWithError(given.ptr(), inputs_[i].ptr());
      if (value == nullptr) {
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        refuse(given);
      }
      take(graph_.values[static_cast<std::size_t>(graph_.inputs[i])], py::handle(value));
    }
  }

  // Returns (name, shape, dtype) of each input; None stands for a dimension, shape or dtype that is not known.
  py::list inputs() const {
    py::list list;
    for (const int input : graph_.inputs) {
      const Value& value = graph_.values[static_cast<std::size_t>(input)];
      const bool object = value.kind == ValueKind::object;
      list.append(
          py::make_tuple(value.name, object || value.any_rank ? py::object(py::none()) : shape_tuple(value.shape),
                         object || value.any_dtype ? py::object(py::none()) : py::str(std::string(dtype_name(value.dtype)))));
    }
    return list;
  }

 private:
  [[noreturn]] void refuse(const py::dict& given) const {
    std::string expected, got;
    for (const auto& name : inputs_) expected += (expected.empty() ? "" : ", ") + std::string(name);
    for (const auto& [name, value] : given) got += (got.empty() ? "" : ", ") + py::cast<std::string>(py::str(name));
    throw Error(ErrorKind::model, "the model takes inputs {" + expected + "}, got {" + got + "}");
  }

  const Graph& graph_;
  std::vector<py::str> inputs_, outputs_;
};

// Converts a value for an input. Numbers and lists take the model's dtype; an array keeps its own, which the session checks.
Tensor input_tensor(const Value& input, py::handle value) {
  const bool typeless = is_number(value) || PyList_Check(value.ptr()) || PyTuple_Check(value.ptr());
  return computed_contiguous(typeless && !input.any_dtype ? as_tensor(value, input.dtype) : as_tensor(value));
}

// Returns the fields of PlannedOp (session_info.py) in their order.
py::tuple planned_op(const PlannedOp& op) {
  py::list candidates;
  for (const AlgorithmCost& one : op.candidates)
    candidates.append(py::make_tuple(std::string(one.algorithm), one.parameter, one.us));
  const std::int64_t parameter = op.candidates.empty() ? 0 : op.candidates.front().parameter;
  return py::make_tuple(op.node, std::string(op.op), std::string(op.algorithm), parameter, op.predicted_us, op.regions,
                        candidates);
}

py::dict costs_of(const Plan& plan) {
  py::dict costs;
  for (const auto& [backend, us] : plan.costs) costs[py::str(std::string(backend))] = us;
  return costs;
}

void add_ops(py::list& ops, const Plan& plan) {
  for (const PlannedOp& op : plan.ops) ops.append(planned_op(op));
}

// Throws Error (model) for a name that the graph does not have, and where an output cannot replace the input.
Updates updates_of(const Graph& graph, const std::map<std::string, std::string>& names, const std::string& condition) {
  Updates updates;
  updates.replaced.assign(graph.outputs.size(), -1);
  const auto output_named = [&](const std::string& name) {
    const auto found =
        std::find_if(graph.outputs.begin(), graph.outputs.end(), [&](const Output& one) { return one.name == name; });
    if (found == graph.outputs.end()) throw Error(ErrorKind::model, "the model has no output '" + name + "'");
    return static_cast<int>(found - graph.outputs.begin());
  };
  for (const auto& [output, input] : names) {
    const auto found = std::find_if(graph.inputs.begin(), graph.inputs.end(), [&, name = std::string_view(input)](int one) {
      return graph.values[static_cast<std::size_t>(one)].name == name;
    });
    if (found == graph.inputs.end()) throw Error(ErrorKind::model, "the model has no input '" + input + "'");
    const int place = static_cast<int>(found - graph.inputs.begin());
    if (std::find(updates.replaced.begin(), updates.replaced.end(), place) != updates.replaced.end())
      throw Error(ErrorKind::model, "two outputs replace the input '" + input + "'");
    updates.replaced[static_cast<std::size_t>(output_named(output))] = place;
  }
  if (!condition.empty()) updates.condition = output_named(condition);
  if (updates.condition >= 0 && updates.replaced[static_cast<std::size_t>(updates.condition)] >= 0)
    throw Error(ErrorKind::model, "the output '" + condition + "' is the condition of updates, and cannot be one");
  return updates;
}

using Clock = StopLimits::Clock;

class BoundSession {
 public:
  BoundSession(std::shared_ptr<const Graph> graph, const Target& target, bool merging,
               Clock::time_point end = Clock::time_point::max())
      : session_(make_session(std::move(graph), target, merging, end)), names_(session_->graph()) {}

  py::dict run(const py::dict& given, std::optional<double> deadline) {
    std::vector<Tensor> inputs;
    names_.each_input(given, [&](const Value& input, py::handle value) { inputs.push_back(input_tensor(input, value)); });
    std::vector<Tensor> outputs = without_gil([&](const StopLimits& limits) { return session_->run(inputs, limits); }, deadline);
    py::dict results;
    for (std::size_t i = 0; i < outputs.size(); ++i) results[names_.outputs()[i]] = std::move(outputs[i]);
    return results;
  }

  // Runs once and returns the microseconds of each operation of the plan.
  py::list profile(const py::dict& given, std::optional<double> deadline) {
    std::vector<Tensor> inputs;
    std::vector<double> us;
    names_.each_input(given, [&](const Value& input, py::handle value) { inputs.push_back(input_tensor(input, value)); });
    without_gil([&](const StopLimits& limits) { return session_->run(inputs, us, limits); }, deadline);
    py::list times;
    for (const double time : us) times.append(time);
    return times;
  }

  std::string find_nonfinite(const py::dict& given) {
    std::vector<Tensor> inputs;
    names_.each_input(given, [&](const Value& input, py::handle value) { inputs.push_back(input_tensor(input, value)); });
    return computed_without_gil([&] { return session_->find_nonfinite(inputs); });
  }

  void cancel() noexcept { session_->cancel(); }

  py::list inputs() const { return names_.inputs(); }
  // Returns (name, shape, dtype) of each output by the last plan; None for both where there is no plan yet.
  py::list outputs() const {
    const auto plan = session_->plan();
    py::list list;
    for (std::size_t i = 0; i < names_.outputs().size(); ++i) {
      if (plan)
        list.append(py::make_tuple(names_.outputs()[i], shape_tuple(plan->outputs[i].shape),
                                   std::string(dtype_name(plan->outputs[i].dtype))));
      else
        list.append(py::make_tuple(names_.outputs()[i], py::none(), py::none()));
    }
    return list;
  }

  py::object plan() const {
    const auto plan = session_->plan();
    if (!plan) return py::none();
    py::list ops;
    add_ops(ops, *plan);
    py::dict result;
    result["backend"] = std::string(plan->kernels->name());
    result["search_ms"] = plan->search_ms;
    result["costs"] = costs_of(*plan);
    result["source"] = plan->source;
    result["ops"] = ops;
    result["rasters_made"] = plan->rasters_made;
    result["rasters_left"] = plan->rasters_left;
    result["arena_bytes"] = plan->arena_bytes;
    result["plan_ms"] = plan->plan_ms;
    return result;
  }

 private:
  // Planning may take long.
  static std::unique_ptr<Session> make_session(std::shared_ptr<const Graph> graph, const Target& target, bool merging,
                                               Clock::time_point end) {
    return computed_without_gil([&] { return std::make_unique<Session>(std::move(graph), target, merging); }, end);
  }

  std::unique_ptr<Session> session_;
  ModelNames names_;
};

// Converts a value for a module's input: arrays become tensors. For an input that is not a tensor, a list of arrays becomes a
// sequence and None an empty optional.
Var to_var(const Value& input, py::handle value) {
  if (input.kind != ValueKind::object) return input_tensor(input, value);
  if (value.is_none()) return Nothing{};
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) return computed_contiguous(as_tensor(value));
  auto sequence = std::make_shared<Sequence>();
  for (const py::handle item : value) sequence->items.push_back(computed_contiguous(as_tensor(item)));
  if (!sequence->items.empty()) sequence->dtype = sequence->items[0].dtype();
  for (const Tensor& item : sequence->items)
    if (item.dtype() != sequence->dtype)
      throw Error(ErrorKind::dtype, "the arrays of sequence input '" + input.name + "' must have one dtype; convert them first");
  return sequence;
}

py::object from_var(Var value, const std::string& name) {
  if (auto* tensor = std::get_if<Tensor>(&value)) return py::cast(std::move(*tensor));
  if (const auto* sequence = std::get_if<std::shared_ptr<const Sequence>>(&value)) {
    py::list items;
    for (const Tensor& item : (*sequence)->items) items.append(py::cast(item));
    return items;
  }
  if (std::holds_alternative<Nothing>(value)) return py::none();
  throw Error(ErrorKind::model, "output '" + name + "' has no value");
}

class BoundModule {
 public:
  BoundModule(std::shared_ptr<const Graph> graph, const Target& target, Clock::time_point end = Clock::time_point::max())
      : module_(computed_without_gil([&] { return std::make_unique<Module>(std::move(graph), target); }, end)),
        names_(module_->graph()) {}

  py::dict run(const py::dict& given, std::optional<double> deadline) {
    std::vector<Var> inputs;
    names_.each_input(given, [&](const Value& input, py::handle value) { inputs.push_back(to_var(input, value)); });
    std::vector<Var> outputs = without_gil([&](const StopLimits& limits) { return module_->run(inputs, limits); }, deadline);
    py::dict results;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      results[names_.outputs()[i]] = from_var(std::move(outputs[i]), module_->graph().outputs[i].name);
    return results;
  }

  void cancel() noexcept { module_->cancel(); }

  py::list inputs() const { return names_.inputs(); }
  py::list outputs() const {
    py::list list;
    for (const auto& name : names_.outputs()) list.append(py::make_tuple(name, py::none(), py::none()));
    return list;
  }

  // Returns the last plans of all sessions of the module as one, with the control-flow nodes between them.
  py::dict plan() const {
    py::list ops;
    int made = 0, left = 0;
    std::size_t arena = 0;
    double ms = 0, search_ms = 0;
    std::map<std::string, double> costs;
    std::set<std::string> sources;  // pieces may have different backends
    module_->visit([&](const std::shared_ptr<const Plan>& plan, const Node* node) {
      if (node != nullptr) ops.append(py::make_tuple(node->name, std::string(node->op->name), "", 0, 0.0, 0, py::list()));
      if (plan == nullptr) return;
      add_ops(ops, *plan);
      search_ms += plan->search_ms;
      for (const auto& [backend, us] : plan->costs) costs[std::string(backend)] += us;
      sources.insert(plan->source);
      made += plan->rasters_made;
      left += plan->rasters_left;
      arena += plan->arena_bytes;
      ms += plan->plan_ms;
    });
    py::dict result;
    result["backend"] = std::string(module_->kernels().name());
    result["search_ms"] = search_ms;
    result["costs"] = costs;
    if (sources.empty()) sources.insert(rates_source(module_->kernels().host_table()));
    std::string source;
    for (const std::string& one : sources) source += (source.empty() ? "" : ", ") + one;
    result["source"] = source;
    result["ops"] = ops;
    result["rasters_made"] = made;
    result["rasters_left"] = left;
    result["arena_bytes"] = arena;
    result["plan_ms"] = ms;
    return result;
  }

 private:
  std::unique_ptr<Module> module_;
  ModelNames names_;
};

py::dict rates_dict(const Rates& rates) {
  py::dict result;
  for (const RateName& one : rate_names()) result[py::str(std::string(one.name))] = rates.*one.rate;
  return result;
}

// Binds the rates of backends; they cross as dicts that hold every rate by name.
void bind_rates(py::module_& module) {
  module.def("rates", [](const std::string& backend) { return rates_dict(rates(kernels(backend))); }, py::arg("backend"));
  module.def("rates_source", [](const std::string& backend) { return rates_source(kernels(backend)); }, py::arg("backend"));
  module.def(
      "measure_rates",
      [](const std::string& backend, double seconds) {
        Rates measured;
        {
          const py::gil_scoped_release released;
          measured = measure_rates(kernels(backend), seconds);
        }
        return rates_dict(measured);
      },
      py::arg("backend"), py::arg("seconds"));
  module.def(
      "set_rates",
      [](const std::string& backend, const std::map<std::string, double>& given) {
        Rates rates;
        for (const RateName& one : rate_names()) {
          const auto found = given.find(std::string(one.name));
          if (found == given.end() || given.size() != rate_names().size())
            throw Error(ErrorKind::backend,
                        "the rates of backend '" + backend + "' do not have this engine's names; measure them again");
          rates.*one.rate = found->second;
        }
        set_rates(kernels(backend), rates);
      },
      py::arg("backend"), py::arg("rates"));
  module.def(
      "peak_gflops",
      [](const std::string& backend, double seconds) {
        const py::gil_scoped_release released;
        return peak_gflops(kernels(backend), seconds);
      },
      py::arg("backend"), py::arg("seconds"));
}

}  // namespace

template <>
inline constexpr bool exact_type_only<BoundSession> = true;
template <>
inline constexpr bool exact_type_only<BoundModule> = true;

void bind_session(py::module_& module) {
  py::class_<BoundSession>(module, "Session")
      .def(py::init([](py::object model, const std::string& backend, int threads, bool merging, Forced algorithms,
                       const std::map<std::string, std::string>& updates, const std::string& condition) {
             const Loading loading;
             Target target = find_target(backend, threads);
             target.forced = std::move(algorithms);
             const auto graph = load_model(model);
             if (!updates.empty()) target.updates = updates_of(*graph, updates, condition);
             return std::make_unique<BoundSession>(graph, target, merging);
           }),
           py::arg("model"), py::arg("backend"), py::arg("threads") = 1, py::arg("merging") = true,
           py::arg("algorithms") = Forced(), py::arg("updates") = std::map<std::string, std::string>(),
           py::arg("condition") = std::string(),
           "`merging` and `algorithms` (by node: name, parameter) serve measurements. `updates` has, by output, the input whose\n"
           "memory a run writes it to, where the output `condition` is true.")
      .def("run", &BoundSession::run, py::arg("inputs"), py::arg("deadline") = py::none())
      .def("profile", &BoundSession::profile, py::arg("inputs"), py::arg("deadline") = py::none())
      .def("find_nonfinite", &BoundSession::find_nonfinite, py::arg("inputs"))
      .def("cancel", &BoundSession::cancel)
      .def("inputs", &BoundSession::inputs)
      .def("outputs", &BoundSession::outputs)
      .def("plan", &BoundSession::plan);
  py::class_<BoundModule>(module, "Module")
      .def(py::init([](py::object model, const std::string& backend, int threads) {
             const Loading loading;
             return std::make_unique<BoundModule>(load_model(model), find_target(backend, threads));
           }),
           py::arg("model"), py::arg("backend"), py::arg("threads") = 1)
      .def("run", &BoundModule::run, py::arg("inputs"), py::arg("deadline") = py::none())
      .def("cancel", &BoundModule::cancel)
      .def("inputs", &BoundModule::inputs)
      .def("outputs", &BoundModule::outputs)
      .def("plan", &BoundModule::plan);
  module.def(
      "load",
      [](py::object model, const std::string& backend, int threads, std::optional<double> deadline) -> py::object {
        const Loading loading;
        const auto end = deadline_after(deadline);
        const Target target = find_target(backend, threads);
        const auto graph = load_model(model);
        const auto planned = computed_without_gil([&] { return rewritten(graph); }, end);
        const auto& nodes = planned->nodes;
        if (needs_module(*planned)) {
          try {  // shapes may decide what control flow there is
            if (std::all_of(nodes.begin(), nodes.end(), may_be_known))
              return py::cast(std::make_unique<BoundSession>(graph, target, true, end));
          } catch (const Error&) {
            // the module says what is wrong with the model, if anything is
          }
          return py::cast(std::make_unique<BoundModule>(graph, target, end));
        }
        return py::cast(std::make_unique<BoundSession>(graph, target, true, end));
      },
      py::arg("model"), py::arg("backend"), py::arg("threads") = 1, py::arg("deadline") = py::none(),
      "Return a Session, or a Module where the model needs one (control flow, sequences).");
  module.def("backends", [] {
    py::list list;
    for (const InstructionSet& set : instruction_sets())
      list.append(py::make_tuple(std::string(set.name), set.available, set.exact));
    return list;
  });
  bind_rates(module);
  module.def("backend", [] { return std::string(kernels().name); }, "Return the name of the backend that \"auto\" selects.");
}

}  // namespace walle
