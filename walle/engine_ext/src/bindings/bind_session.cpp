// Sessions and backends.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "exec/eager.h"
#include "exec/session.h"
#include "graph/load.h"

namespace py = pybind11;

namespace walle {

namespace {

// A session with its input and output names, so that a call makes no string.
class BoundSession {
 public:
  BoundSession(std::shared_ptr<const Graph> graph, const std::string& backend) : session_(std::move(graph), kernels(backend)) {
    for (const int input : session_.graph().inputs)
      input_names_.emplace_back(session_.graph().values[static_cast<std::size_t>(input)].name);
    for (const Output& output : session_.graph().outputs) output_names_.emplace_back(output.name);
  }

  py::dict run(const py::dict& given) {
    if (given.size() != input_names_.size()) refuse_names(given);
    std::vector<Tensor> inputs, outputs;
    inputs.reserve(input_names_.size());
    for (std::size_t i = 0; i < input_names_.size(); ++i) {
      PyObject* value = PyDict_GetItemWithError(given.ptr(), input_names_[i].ptr());
      if (value == nullptr) {
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        refuse_names(given);
      }
      const DType dtype = session_.graph().values[static_cast<std::size_t>(session_.graph().inputs[i])].dtype;
      // Numbers and lists have no dtype of their own; an array's must be the model's.
      const bool typeless = is_number(value) || PyList_Check(value) || PyTuple_Check(value);
      inputs.push_back(contiguous(typeless ? as_tensor(value, dtype) : as_tensor(value)));
    }
    {
      const py::gil_scoped_release released;
      outputs = session_.run(inputs);
    }
    py::dict results;
    for (std::size_t i = 0; i < outputs.size(); ++i) results[output_names_[i]] = std::move(outputs[i]);
    return results;
  }

  // (name, shape with None for what is open, dtype)
  py::list inputs() const {
    py::list list;
    for (const int input : session_.graph().inputs) {
      const Value& value = session_.graph().values[static_cast<std::size_t>(input)];
      list.append(py::make_tuple(value.name, open_shape(value.shape), std::string(dtype_name(value.dtype))));
    }
    return list;
  }
  // As far as they are known: from the last plan.
  py::list outputs() const {
    const auto plan = session_.plan();
    py::list list;
    for (std::size_t i = 0; i < output_names_.size(); ++i) {
      if (plan)
        list.append(py::make_tuple(output_names_[i], open_shape(plan->outputs[i].shape),
                                   std::string(dtype_name(plan->outputs[i].dtype))));
      else
        list.append(py::make_tuple(output_names_[i], py::none(), py::none()));
    }
    return list;
  }

  py::object plan() const {
    const auto plan = session_.plan();
    if (!plan) return py::none();
    py::list ops;
    for (const PlannedOp& op : plan->ops)
      ops.append(py::make_tuple(op.node, std::string(op.op), op.step ? 0 : static_cast<int>(op.regions.size())));
    py::dict result;
    result["backend"] = std::string(session_.table().name);
    result["ops"] = ops;
    result["rasters_made"] = plan->rasters_made;
    result["rasters_left"] = plan->rasters_left;
    result["arena_bytes"] = plan->arena->size_bytes();
    result["plan_ms"] = plan->plan_ms;
    return result;
  }

 private:
  static py::tuple open_shape(const Dims& shape) {
    py::tuple result(shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i)
      result[i] = shape[i] < 0 ? py::object(py::none()) : py::object(py::int_(shape[i]));
    return result;
  }

  [[noreturn]] void refuse_names(const py::dict& given) const {
    std::string wanted, got;
    for (const auto& name : input_names_) wanted += (wanted.empty() ? "" : ", ") + std::string(name);
    for (const auto& [name, value] : given) got += (got.empty() ? "" : ", ") + py::cast<std::string>(py::str(name));
    throw Error(ErrorKind::model, "the model takes inputs {" + wanted + "}, got {" + got + "}");
  }

  Session session_;
  std::vector<py::str> input_names_, output_names_;
};

std::shared_ptr<const Graph> load(py::handle model) {
  if (PyObject_CheckBuffer(model.ptr())) {
    const auto bytes = tensor_from_buffer(model);
    // Copied, so that the constants never hold a Python buffer: they outlive any interpreter.
    const auto size = static_cast<std::size_t>(bytes.size()) * item_size(bytes.dtype());
    auto storage = Storage::allocate(size);
    const Tensor dense = contiguous(bytes);
    std::copy(dense.raw(), dense.raw() + size, storage->data());
    return load_graph(storage);
  }
  const auto path = py::cast<std::string>(py::module_::import("os").attr("fsdecode")(model));
  const py::gil_scoped_release released;
  return load_graph(path);
}

}  // namespace

void bind_session(py::module_& module) {
  py::class_<BoundSession>(module, "Session")
      .def(py::init(
               [](py::object model, const std::string& backend) { return std::make_unique<BoundSession>(load(model), backend); }),
           py::arg("model"), py::arg("backend"))
      .def("run", &BoundSession::run, py::arg("inputs"))
      .def("inputs", &BoundSession::inputs)
      .def("outputs", &BoundSession::outputs)
      .def("plan", &BoundSession::plan);
  module.def("backends", [] {
    py::list list;
    for (const Backend& backend : backends()) list.append(py::make_tuple(std::string(backend.name), backend.available));
    return list;
  });
  module.def("backend", [] { return std::string(kernels().name); }, "The name of the backend that \"auto\" stands for.");
}

}  // namespace walle
