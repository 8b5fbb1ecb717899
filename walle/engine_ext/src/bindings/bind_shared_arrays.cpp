// Arrays in memory that VM hosts share, for walle.vm and events with arrays.
#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/operations.h"
#include "bindings/vm_handle.h"
#include "vm/shared_buffers.h"

namespace py = pybind11;

namespace walle {

namespace {

// A task's arrays are in ordinary memory, which its account counts.
std::shared_ptr<Storage> allocate(std::size_t size_bytes) {
  return vm::TaskVm::current() != nullptr ? Storage::allocate(size_bytes) : vm::allocate_shared(size_bytes);
}

Tensor shared_empty(py::handle shape, py::handle dtype) {
  const DType type = dtype_of(dtype);
  Dims dims = dims_of(shape);
  const auto size_bytes = static_cast<std::size_t>(element_count(dims)) * item_size(type);
  Dims strides = contiguous_strides(dims);
  return {allocate(size_bytes), type, std::move(dims), std::move(strides), 0};
}

py::object shared_copy(py::handle array) {
  const Tensor source = as_tensor(array);
  const auto size_bytes = static_cast<std::size_t>(source.size()) * item_size(source.dtype());
  if (source.contiguous() && size_bytes > 0 && vm::find_shared(source.raw(), size_bytes))
    return is_ndarray(array) ? py::reinterpret_borrow<py::object>(array) : py::cast(source);
  Tensor copy(allocate(size_bytes), source.dtype(), source.shape(), contiguous_strides(source.shape()), 0);
  computed_assign(source, copy);
  return py::cast(std::move(copy));
}

py::dict shared_buffer_counts() {
  const vm::SharedBufferCounts counts = vm::shared_buffer_counts();
  py::dict found;
  found["in_use"] = counts.in_use;
  found["free"] = counts.free;
  found["bytes"] = counts.bytes;
  found["created"] = counts.created;
  return found;
}

}  // namespace

void bind_shared_arrays(py::module_& module) {
  module.def("shared_empty", &shared_empty, py::arg("shape"), py::arg("dtype"),
             "Return an uninitialised array in memory that VM hosts share.");
  module.def("shared_copy", &shared_copy, py::arg("array"),
             "Return the array in memory that VM hosts share: itself where it is there, else a copy.");
  module.def("shared_buffer_counts", &shared_buffer_counts, "Return the number of shared buffers and their bytes.");
}

}  // namespace walle
