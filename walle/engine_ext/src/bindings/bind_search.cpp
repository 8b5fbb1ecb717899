// Bindings of the PBQP solver and of performance models, for walle.engine_ext.search.
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/released_gil.h"
#include "kernels/table.h"
#include "search/goal_order.h"
#include "search/model_registry.h"
#include "search/pbqp.h"

namespace py = pybind11;

namespace walle {

namespace {

Tensor cost_array(py::handle array) { return computed_contiguous(as_tensor(array, DType::f64)); }

std::tuple<std::vector<int>, double, bool> solved_pbqp(const py::sequence& node_costs, const py::sequence& edges,
                                                       std::int64_t max_steps) {
  PbqpProblem problem;
  for (const py::handle item : node_costs) {
    const Tensor costs = cost_array(item);
    problem.costs.emplace_back(costs.data<double>(), costs.data<double>() + costs.size());
  }
  std::vector<Tensor> matrices;  // keeps what the problem views
  for (const py::handle item : edges) {
    const auto edge = py::cast<py::tuple>(item);
    Tensor given = as_tensor(edge[2], DType::f64);
    if (given.ndim() != 2) throw Error(ErrorKind::shape, "costs of an edge have the shape " + to_string(given.shape()));
    auto u = py::cast<int>(edge[0]), v = py::cast<int>(edge[1]);
    // NumPy often makes matrices in column-major order: no copy either.
    const Tensor turned =
        view(given, {given.shape()[1], given.shape()[0]}, {given.strides()[1], given.strides()[0]}, given.offset());
    if (!given.contiguous() && turned.contiguous()) {
      given = turned;
      std::swap(u, v);
    }
    const Tensor& costs = matrices.emplace_back(computed_contiguous(given));
    const auto rows = static_cast<int>(costs.shape()[0]), columns = static_cast<int>(costs.shape()[1]);
    problem.add_edge(u, v, pbqp::CostMatrix::view(rows, columns, costs.data<double>()));
  }
  PbqpSolution solution = computed_without_gil([&] { return solve_pbqp(problem, {max_steps}); });
  return {std::move(solution.choices), solution.cost, solution.exact};
}

// Return layers of an array of shape (n, 5): k, c, im, s and f, which are at least 1. Throws Error (shape) for other arrays.
std::vector<ConvLayer> conv_layers(py::handle array) {
  const Tensor given = cost_array(array);
  constexpr std::int64_t kNumbers = 5;
  if (given.ndim() != 2 || given.shape()[1] != kNumbers)
    throw Error(ErrorKind::shape, "layers have shape " + to_string(given.shape()) + "; give (n, 5): k, c, im, s and f of each");
  const double* numbers = given.data<double>();
  if (!std::all_of(numbers, numbers + given.size(), [](double number) { return number >= 1 && number <= 1e9; }))
    throw Error(ErrorKind::shape, "layers have a number that is not from 1 to 1e9");
  std::vector<ConvLayer> layers;
  for (const double* row = numbers; row != numbers + given.size(); row += kNumbers)
    layers.push_back({row[0], row[1], row[2], row[3], row[4]});
  return layers;
}

Tensor layer_features_array(py::handle array) {
  const std::vector<ConvLayer> layers = conv_layers(array);
  const auto count = static_cast<std::int64_t>(layers.size());
  const Tensor result = Tensor::empty(DType::f64, {count, static_cast<std::int64_t>(kLayerFeatures)});
  double* row = result.data<double>();
  for (const ConvLayer& layer : layers) {
    layer_features(layer, std::span<double, kLayerFeatures>(row, kLayerFeatures));
    row += kLayerFeatures;
  }
  return result;
}

Tensor predicted_times(const py::bytes& model, py::handle array) {
  const PerformanceModel given{std::string_view(model)};
  const std::vector<ConvLayer> layers = conv_layers(array);
  const std::vector<float> us = given.predict(layers);
  const Tensor result =
      Tensor::empty(DType::f32, {static_cast<std::int64_t>(layers.size()), static_cast<std::int64_t>(given.primitives().size())});
  std::copy(us.begin(), us.end(), result.data<float>());
  return result;
}

void bind_performance_models(py::module_& module) {
  module.def("layer_feature_names", &layer_feature_names);
  module.def("layer_features", &layer_features_array, py::arg("layers"), "Return the features of layers (n, 5), float64.");
  module.def("predicted_times", &predicted_times, py::arg("model"), py::arg("layers"),
             "Return microseconds (n, primitives), float32, of layers (n, 5); NaN beyond its range.");
  module.def(
      "performance_model",
      [](const std::string& backend) -> py::object {
        const auto model = performance_model(kernels(backend).name);
        return model == nullptr ? py::object(py::none()) : py::bytes(model->bytes());
      },
      py::arg("backend"));
  module.def(
      "set_performance_model",
      [](const std::string& backend, const std::optional<py::bytes>& model) {
        set_performance_model(kernels(backend).name,
                              model ? std::make_shared<const PerformanceModel>(std::string_view(*model)) : nullptr);
      },
      py::arg("backend"), py::arg("model"));
}

// Returns the budgets of goals, an array of shape (n, constraints), or (constraints) for one. Throws Error (shape).
Tensor budgets(py::handle array, int ndim) {
  const Tensor given = cost_array(array);
  if (given.ndim() != ndim || given.shape().back() < 1)
    throw Error(ErrorKind::shape, "budgets have shape " + to_string(given.shape()) +
                                      (ndim == 2 ? "; give (goals, constraints), with at least one constraint"
                                                 : "; a goal has one number for each constraint"));
  const double* numbers = given.data<double>();
  if (std::any_of(numbers, numbers + given.size(), [](double number) { return std::isnan(number); }))
    throw Error(ErrorKind::shape, "a budget is not a number");
  return given;
}

void bind_goal_order(py::module_& module) {
  using search::GoalOrder;
  const auto row = [](const GoalOrder& order, py::handle goal) {
    const Tensor given = budgets(goal, 1);
    if (static_cast<std::size_t>(given.size()) != order.constraints())
      throw Error(ErrorKind::shape, "a goal of " + std::to_string(given.size()) + " constraints; the others have " +
                                        std::to_string(order.constraints()));
    return given;
  };
  py::class_<GoalOrder>(module, "GoalOrder")
      .def(py::init([](py::handle goals) {
             const Tensor given = budgets(goals, 2);
             return GoalOrder({given.data<double>(), static_cast<std::size_t>(given.size())},
                              static_cast<std::size_t>(given.shape()[1]));
           }),
           py::arg("goals"))
      .def("__len__", &GoalOrder::size)
      .def("parent",
           [](const GoalOrder& order, std::size_t index) {
             if (index >= order.size()) throw py::index_error("no goal " + std::to_string(index));
             return order.parent(index);
           })
      .def("insert",
           [row](GoalOrder& order, py::handle goal) {
             const Tensor given = row(order, goal);
             return order.insert({given.data<double>(), order.constraints()});
           })
      .def("paths", &GoalOrder::paths)
      .def("chains", &GoalOrder::chains);
}

}  // namespace

void bind_search(py::module_& module) {
  module.def("solve_pbqp", &solved_pbqp, py::arg("node_costs"), py::arg("edges"), py::arg("max_steps"),
             "Return (choices, cost, is_exact) of a PBQP problem; edges are (u, v, matrix).");
  bind_performance_models(module);
  bind_goal_order(module);
}

}  // namespace walle
