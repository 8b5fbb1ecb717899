// Bindings of walle.np.ndarray's storage: the buffer protocol in both directions.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "bindings/bind.h"
#include "core/work_context.h"
#include "operators/eager.h"
#include "vm/array_loans.h"

namespace py = pybind11;

namespace walle {

namespace {

// Format characters of the buffer protocol by dtype. bfloat16 and the storage-only types have none and are exported as integers
// of their size; `view` restores the dtype of such a buffer.
constexpr const char* kFormats[kDTypeCount] = {"f", "d", "e", "H", "b", "h", "i", "q", "B", "H", "I", "Q",
                                               "?", "B", "B", "B", "B", "B", "B", "b", "B", "b", "B"};

DType dtype_of_format(const char* format, std::size_t size) {
  const char* code = format ? format : "B";
  if (*code == '@' || *code == '=' || *code == '<') ++code;
  if (code[0] != '\0' && code[1] == '\0') {
    switch (*code) {
      case 'f': return DType::f32;
      case 'd': return DType::f64;
      case 'e': return DType::f16;
      case '?': return DType::b8;
      case 'b':
      case 'h':
      case 'i':
      case 'l':
      case 'q': return size == 1 ? DType::i8 : size == 2 ? DType::i16 : size == 4 ? DType::i32 : DType::i64;
      case 'c':
      case 'B':
      case 'H':
      case 'I':
      case 'L':
      case 'Q': return size == 1 ? DType::u8 : size == 2 ? DType::u16 : size == 4 ? DType::u32 : DType::u64;
      default: break;
    }
  }
  throw Error(ErrorKind::dtype, std::string("a buffer of format '") + (format ? format : "") + "' is not an array of numbers");
}

// Returns the array of a buffer view. When the storage has taken the view over, its `obj` is cleared here.
Tensor tensor_on(Py_buffer& view) {
  const DType dtype = dtype_of_format(view.format, static_cast<std::size_t>(view.itemsize));
  // Kernels assume that every element is aligned for its type.
  if (reinterpret_cast<std::uintptr_t>(view.buf) % item_size(dtype) != 0)
    throw Error(ErrorKind::dtype,
                "a buffer whose first element is not aligned to its item size cannot be shared; copy the array first");
  Dims shape(view.shape, view.shape + view.ndim), strides(static_cast<std::size_t>(view.ndim));
  // The range of bytes that the view reaches, relative to its first element; a negative stride extends it downwards.
  std::ptrdiff_t low = 0, high = view.itemsize;
  bool empty = false;
  for (int axis = 0; axis < view.ndim; ++axis) {
    if (view.strides[axis] % view.itemsize != 0)
      throw Error(ErrorKind::dtype,
                  "a buffer with strides that are not a multiple of its item size cannot be shared; copy the array first");
    strides[static_cast<std::size_t>(axis)] = view.strides[axis] / view.itemsize;
    if (view.shape[axis] == 0)
      empty = true;
    else
      (view.strides[axis] < 0 ? low : high) += (view.shape[axis] - 1) * view.strides[axis];
  }
  if (empty) low = high = 0;
  auto storage = vm::loan(view, static_cast<std::byte*>(view.buf) + low, static_cast<std::size_t>(high - low));
  view.obj = nullptr;
  return {std::move(storage), dtype, std::move(shape), std::move(strides), -low / view.itemsize};
}

}  // namespace

Tensor tensor_from_buffer(py::handle object) {
  Py_buffer view{};
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) throw py::error_already_set();
  Tensor tensor;
  try {
    tensor = tensor_on(view);
  } catch (...) {
    PyBuffer_Release(&view);
    throw;
  }
  if (tensor.dtype() == DType::b8) {
    const Tensor dense = contiguous(tensor);
    const auto* bytes = reinterpret_cast<const unsigned char*>(dense.raw());
    if (std::any_of(bytes, bytes + dense.size(), [](unsigned char byte) { return byte > 1; }))
      throw Error(ErrorKind::dtype,
                  "a buffer of bool has a byte that is neither 0 nor 1; read it as uint8 and compare it with 0");
  }
  return tensor;
}

namespace {

// The Tensor of an ndarray, with the vectors of its shape and strides, which malloc rounds up: beside the Python object, and
// counted like that, on the thread that allocates or frees it.
constexpr std::int64_t kNativeBytes = sizeof(Tensor) + 16 + 2 * 32;

void count_native(std::int64_t bytes) noexcept {
  if (WorkContext* context = current_work_context().get()) context->engine_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

PyObject* allocate_counted(PyTypeObject* type, Py_ssize_t items) {
  PyObject* object = PyType_GenericAlloc(type, items);
  if (object != nullptr) count_native(kNativeBytes);
  return object;
}

void free_counted(void* object) {
  PyObject_Free(object);
  count_native(-kNativeBytes);
}

}  // namespace

bool is_ndarray(py::handle object) { return py::detail::make_caster<Tensor>().load(object, false); }

void bind_tensor(py::module_& module) {
  auto ndarray = py::class_<Tensor>(module, "ndarray", py::buffer_protocol());
  auto* type = reinterpret_cast<PyTypeObject*>(ndarray.ptr());
  type->tp_alloc = allocate_counted;
  type->tp_free = free_counted;
  ndarray
      .def(py::init([](py::buffer object) { return tensor_from_buffer(object); }), py::arg("buffer"))
      // Without this, ndarray.__new__(ndarray) would return an object without a Tensor. Objects returned here need no __init__.
      .def_static(
          "__new__", [](py::handle, py::buffer object) { return tensor_from_buffer(object); }, py::arg("cls"), py::arg("buffer"))
      .def_property_readonly("address", [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()); })
      .def_buffer([](Tensor& t) {
        const auto item = static_cast<py::ssize_t>(item_size(t.dtype()));
        std::vector<py::ssize_t> strides;
        for (const auto stride : t.strides()) strides.push_back(stride * item);
        return py::buffer_info(t.raw(), item, kFormats[static_cast<int>(t.dtype())], t.ndim(),
                               std::vector<py::ssize_t>(t.shape().begin(), t.shape().end()), std::move(strides),
                               !(t.storage() && t.storage()->writable()));
      });
  module.def("live_storage_bytes", &live_storage_bytes, "Bytes of engine memory that are allocated in this process.");
}

}  // namespace walle
