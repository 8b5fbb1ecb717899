// Binding of the PBQP solver, for walle.engine_ext.search.
#include <pybind11/stl.h>

#include <tuple>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/released_gil.h"
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

}  // namespace

void bind_search(py::module_& module) {
  module.def("solve_pbqp", &solved_pbqp, py::arg("node_costs"), py::arg("edges"), py::arg("max_steps"),
             "Return (choices, cost, is_exact) of a PBQP problem; edges are (u, v, matrix).");
}

}  // namespace walle
