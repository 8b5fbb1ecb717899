// The buffer protocol of walle.np.ndarray, in both directions.
#include <algorithm>
#include <cstring>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "operators/eager.h"
#include "vm/array_loans.h"

namespace py = pybind11;

namespace walle {

namespace {

// Whether a dtype has a format character. bfloat16 and the storage-only types have none: with a format they are not exported, as
// NumPy does with those of ml_dtypes; without one they are bytes.
constexpr bool has_format(DType dtype) { return is_complex(dtype) || (compute_index(dtype) >= 0 && dtype != DType::bf16); }

// Format characters of the buffer protocol by dtype.
constexpr const char* kFormats[kDTypeCount] = {"f", "d", "e", "H", "b", "h", "i", "q", "B", "H", "I",  "Q", "?",
                                               "B", "B", "B", "B", "B", "B", "b", "B", "b", "B", "Zf", "Zd"};

DType dtype_of_format(const char* format, std::size_t size) {
  const char* code = format ? format : "B";
  if (*code == '@' || *code == '=' || *code == '<') ++code;
  if (code[0] == 'Z' && (code[1] == 'f' || code[1] == 'd') && code[2] == '\0') return code[1] == 'f' ? DType::c64 : DType::c128;
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
  if (reinterpret_cast<std::uintptr_t>(view.buf) % item_alignment(dtype) != 0)
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

// Returns the array of an object whose dtype the buffer protocol lacks, as those of ml_dtypes: the dtype by its name, the
// elements by their bits. Nothing for other objects.
std::optional<Tensor> tensor_from_bits(py::handle object) {
  const py::object name = py::getattr(py::getattr(object, "dtype", py::none()), "name", py::none());
  const auto dtype = find_dtype(name);
  if (!dtype || has_format(*dtype) || !py::hasattr(object, "view")) return std::nullopt;
  const Tensor bits = tensor_from_buffer(object.attr("view")(item_size(*dtype) == 1 ? "uint8" : "uint16"));
  return Tensor(bits.storage(), *dtype, bits.shape(), bits.strides(), bits.offset());
}

}  // namespace

Tensor tensor_from_buffer(py::handle object) {
  Py_buffer view{};
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) {
    const py::error_already_set error;
    if (auto tensor = tensor_from_bits(object)) return *std::move(tensor);
    throw error;
  }
  Tensor tensor;
  try {
    tensor = tensor_on(view);
  } catch (...) {
    PyBuffer_Release(&view);
    throw;
  }
  if (tensor.dtype() == DType::b8) {
    const Tensor dense = computed_contiguous(tensor);
    const auto* bytes = reinterpret_cast<const unsigned char*>(dense.raw());
    const bool is_bool = computed(dense.size(), [&] {
      bool all = true;
      run_stoppable(dense.size(), 1, [&](std::int64_t first, std::int64_t last) {
        all = all && std::none_of(bytes + first, bytes + last, [](unsigned char byte) { return byte > 1; });
      });
      return all;
    });
    if (!is_bool)
      throw Error(ErrorKind::dtype,
                  "a buffer of bool has a byte that is neither 0 nor 1; read it as uint8 and compare it with 0");
  }
  return tensor;
}

namespace {

constexpr bool asks_for(int flags, int wanted) { return (flags & wanted) == wanted; }

// Dimensions and byte strides of a buffer that is exported; its consumer releases them.
struct BufferShape {
  std::vector<Py_ssize_t> shape, strides;
};

}  // namespace

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  const char* refusal = nullptr;
  try {
    const Tensor& x = tensor_of(self);
    const bool writable = x.storage() && x.storage()->writable(), dense = x.contiguous();
    if (asks_for(flags, PyBUF_WRITABLE) && !writable) refusal = "the array is read-only; copy it first";
    const bool needs_rows = asks_for(flags, PyBUF_C_CONTIGUOUS) || !asks_for(flags, PyBUF_STRIDES);
    if ((needs_rows || asks_for(flags, PyBUF_ANY_CONTIGUOUS)) && !dense)
      refusal = "the array is not in row-major order; use ascontiguousarray";
    auto shape = std::make_unique<BufferShape>();
    const auto item = static_cast<Py_ssize_t>(item_size(x.dtype()));
    Py_ssize_t columns = 1;  // the stride of a column-major array
    for (std::size_t axis = 0; axis < x.shape().size(); ++axis) {
      shape->shape.push_back(x.shape()[axis]);
      shape->strides.push_back(x.strides()[axis] * item);
      if (asks_for(flags, PyBUF_F_CONTIGUOUS) && x.shape()[axis] > 1 && x.strides()[axis] != columns)
        refusal = "the array is not in column-major order";
      columns *= x.shape()[axis];
    }
    std::string format_refusal;
    if (refusal == nullptr && asks_for(flags, PyBUF_FORMAT) && !has_format(x.dtype())) {
      format_refusal = "the buffer protocol has no format for " + std::string(dtype_name(x.dtype())) + "; view the array as " +
                       (item == 1 ? "uint8" : "uint16") + ", its bits";
      refusal = format_refusal.c_str();
    }
    if (refusal == nullptr) {
      const bool has_shape = asks_for(flags, PyBUF_ND);
      view->buf = x.raw();
      view->len = x.size() * item;
      view->itemsize = item;
      view->readonly = writable ? 0 : 1;
      view->ndim = has_shape ? x.ndim() : 1;
      view->format = asks_for(flags, PyBUF_FORMAT) ? const_cast<char*>(kFormats[static_cast<int>(x.dtype())]) : nullptr;
      view->shape = has_shape ? shape->shape.data() : nullptr;
      view->strides = asks_for(flags, PyBUF_STRIDES) ? shape->strides.data() : nullptr;
      view->suboffsets = nullptr;
      view->internal = shape.release();
      view->obj = Py_NewRef(self);
      return 0;
    }
    PyErr_SetString(PyExc_BufferError, refusal);
    return -1;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return -1;
  }
}

void release_buffer(PyObject*, Py_buffer* view) { delete static_cast<BufferShape*>(view->internal); }

void bind_tensor(py::module_& module) {
  module.def("live_storage_bytes", &live_storage_bytes, "Bytes of engine memory that are allocated in this process.");
  module.def("free_cached_blocks", &free_cached_blocks,
             "Free the memory of former arrays that this thread keeps for new ones of their size, and return its bytes.");
}

}  // namespace walle
