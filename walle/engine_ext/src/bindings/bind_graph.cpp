#include "bindings/bind_graph.h"

#include <pybind11/stl.h>

#include <tuple>
#include <unordered_set>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/released_gil.h"
#include "graph/load.h"
#include "graph/open.h"
#include "vm/shared_memory.h"

namespace py = pybind11;

namespace walle {

namespace {

// A name, a dtype and a shape, of which a dimension may be None.
using GivenInput = std::tuple<std::string, std::string, std::vector<std::optional<std::int64_t>>>;
// An operator, its name, the numbers of its inputs (-1: left out), its attributes, and its number of outputs.
using GivenNode = std::tuple<std::string, std::string, std::vector<int>, py::dict, int>;

py::object to_python(const Attribute& attribute) {
  return std::visit([](const auto& value) { return py::object(py::cast(value)); }, attribute);
}

// A constant that no code can change afterwards.
Tensor constant_of(const Tensor& given) {
  const bool is_fixed = given.storage() != nullptr && !given.storage()->writable() && given.contiguous() && given.offset() == 0;
  return is_fixed ? given : copy_of(given);
}

class Sketch {
 public:
  explicit Sketch(std::string name) { graph_->name = std::move(name); }

  void add_input(const GivenInput& input) {
    const auto& [name, dtype, shape] = input;
    Value value{name, ValueKind::input};
    value.dtype = dtype_of(py::str(dtype));
    for (const auto& size : shape) {
      if (size && *size < 0) throw Error(ErrorKind::shape, "input '" + name + "' has a negative dimension; None is any");
      value.shape.push_back(size.value_or(-1));
    }
    graph_->inputs.push_back(add(std::move(value)));
  }

  void add_constant(const std::string& name, const Tensor& array) {
    Value value{name, ValueKind::constant, array.dtype(), array.shape()};
    value.constant = constant_of(array);
    add(std::move(value));
  }

  void add_node(const GivenNode& given) {
    const auto& [op, name, inputs, attributes, outputs] = given;
    Node node;
    node.op = find_operator(op);
    if (node.op == nullptr) throw Error(ErrorKind::unsupported, "node '" + name + "': operator '" + op + "' is unknown");
    node.name = name;
    for (const int input : inputs) {
      if (input >= static_cast<int>(graph_->values.size()))
        throw Error(ErrorKind::model, "node '" + name + "' reads value " + std::to_string(input) + ", which is not there yet");
      node.inputs.push_back(std::max(input, -1));
    }
    node.attributes = attributes_of(attributes);
    for (const auto& item : node.attributes.items()) check_known(*node.op, item.first, name);
    constexpr int kMostOutputs = 1 << 16;
    if (outputs > kMostOutputs) throw Error(ErrorKind::model, "node '" + name + "' has " + std::to_string(outputs) + " outputs");
    for (int i = 0; i < outputs; ++i) node.outputs.push_back(add({name + ":" + std::to_string(i), ValueKind::result}));
    check(node);
    graph_->nodes.push_back(std::move(node));
  }

  void add_output(const std::string& name, int value) {
    if (value < 0 || value >= static_cast<int>(graph_->values.size()))
      throw Error(ErrorKind::model, "output '" + name + "' names value " + std::to_string(value));
    graph_->outputs.push_back({name, value});
  }

  std::shared_ptr<const Graph> graph() {
    if (graph_->outputs.empty()) throw Error(ErrorKind::model, "graph '" + graph_->name + "' has no output");
    arrange(*graph_);
    return std::move(graph_);
  }

 private:
  int add(Value value) {
    const auto number = static_cast<int>(graph_->values.size());
    if (!names_.insert(value.name).second) {
      value.name += "~" + std::to_string(number);
      names_.insert(value.name);
    }
    graph_->values.push_back(std::move(value));
    return number;
  }

  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  std::unordered_set<std::string> names_;
};

BoundGraph sketched(std::string name, const std::vector<GivenInput>& inputs,
                    const std::vector<std::pair<std::string, py::object>>& constants, const std::vector<GivenNode>& nodes,
                    const std::vector<std::pair<std::string, int>>& outputs) {
  Sketch sketch(std::move(name));
  for (const GivenInput& input : inputs) sketch.add_input(input);
  for (const auto& [constant, array] : constants) sketch.add_constant(constant, as_tensor(array));
  for (const GivenNode& node : nodes) sketch.add_node(node);
  for (const auto& [output, value] : outputs) sketch.add_output(output, value);
  return {sketch.graph()};
}

// (name, kind, dtype, shape, array) of each value; None for what is not known before a run.
py::list values_of(const BoundGraph& bound) {
  py::list list;
  for (const Value& value : bound.graph->values) {
    const bool typed = value.kind == ValueKind::constant || value.kind == ValueKind::input;
    const char* kind = value.kind == ValueKind::constant ? "constant" : typed ? "input" : "result";
    py::object shape = py::none(), dtype = py::none(), array = py::none();
    if (typed && !value.any_rank) {
      py::list sizes;
      for (const std::int64_t size : value.shape) sizes.append(size < 0 ? py::object(py::none()) : py::int_(size));
      shape = py::tuple(sizes);
    }
    if (typed && !value.any_dtype) dtype = py::str(std::string(dtype_name(value.dtype)));
    if (value.kind == ValueKind::constant) array = py::cast(value.constant);
    list.append(py::make_tuple(value.name, kind, dtype, shape, array));
  }
  return list;
}

// (operator, name, inputs, attributes, outputs, whether it has subgraphs) of each node, in an order of running.
py::list nodes_of(const BoundGraph& bound) {
  py::list list;
  for (const Node& node : bound.graph->nodes) {
    py::dict attributes;
    for (const auto& [name, value] : node.attributes.items()) attributes[py::str(name)] = to_python(value);
    list.append(
        py::make_tuple(std::string(node.op->name), node.name, node.inputs, attributes, node.outputs, !node.graphs.empty()));
  }
  return list;
}

py::list outputs_of(const BoundGraph& bound) {
  py::list list;
  for (const Output& output : bound.graph->outputs) list.append(py::make_tuple(output.name, output.value));
  return list;
}

}  // namespace

template <>
inline constexpr bool exact_type_only<BoundGraph> = true;

std::shared_ptr<const Graph> load_model(py::handle model) {
  if (py::isinstance<BoundGraph>(model)) return model.cast<const BoundGraph&>().graph;
  if (is_ndarray(model)) {  // a task's file in a VM host
    const Tensor& bytes = tensor_of(model);
    const auto& storage = bytes.storage();
    const bool is_whole = storage && bytes.contiguous() && bytes.dtype() == DType::u8 && bytes.offset() == 0 &&
                          static_cast<std::size_t>(bytes.size()) == storage->size_bytes();
    if (is_whole && vm::is_mapped_file(storage.get())) return load_graph(storage);
  }
  if (PyObject_CheckBuffer(model.ptr())) {
    // Copied, because constants outlive any interpreter and must not reference a Python buffer.
    const Tensor copy = copy_of(tensor_from_buffer(model));
    return computed_without_gil([&] { return load_graph(copy.storage()); });
  }
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(model.ptr(), &encoded) == 0) throw py::error_already_set();
  const auto path = std::string(py::reinterpret_steal<py::bytes>(encoded));
  return computed_without_gil([&] { return open_graph(path); });
}

void bind_graph(py::module_& module) {
  py::class_<BoundGraph>(module, "Graph", "The graph of a model. Values have numbers: inputs, constants, results of nodes.")
      .def(py::init(&sketched), py::arg("name"), py::arg("inputs"), py::arg("constants"), py::arg("nodes"), py::arg("outputs"))
      .def_static(
          "open", [](py::handle model) { return BoundGraph{load_model(model)}; }, py::arg("model"))
      .def("values", &values_of)
      .def("nodes", &nodes_of)
      .def("outputs", &outputs_of)
      .def("inputs", [](const BoundGraph& bound) { return bound.graph->inputs; });
}

}  // namespace walle
