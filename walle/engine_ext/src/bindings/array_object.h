// Python objects of type walle.np.ndarray: a Tensor each, or a number without its own memory. The type is a C type, final and
// immutable, because pybind11's instances and calls cost several times what an operation on a small array does (ADR 16).
#pragma once
#include <pybind11/pybind11.h>

#include "core/tensor.h"

namespace walle {

// The result of x[2] or of iteration keeps its number in the object, and gets a Tensor when an operation first needs one: most
// such results are only converted, compared or discarded.
struct ArrayObject {
  PyObject_HEAD;
  PyObject* weak_references;
  PyObject* base;  // the array that this one is a view of, or null
  Tensor tensor;   // undefined while has_number
  bool has_number;
  DType dtype;  // type of the number
  alignas(16) std::byte number[16];
};

// Python objects of this interpreter that arrays need. Each interpreter has its own; they are found through its number, which no
// later interpreter gets, and live as long as it.
struct ArrayTypes {
  PyTypeObject* array;
  PyTypeObject* iterator;
  PyObject* dtypes[kDTypeCount];  // walle.np.dtype
  PyTypeObject* recorded;         // null, or the class of objects whose operations are recorded (bindings/recording.h)
  PyObject* recorder;
};
const ArrayTypes& array_types();
ArrayTypes& mutable_array_types();  // writable while the module is created

// Iterator over an array's first axis.
struct IteratorObject {
  PyObject_HEAD;
  PyObject* array;
  std::int64_t length, next;
};

void dealloc_array(PyObject* self);

// Returns whether the object is an ndarray by its type; `__class__` is ignored. No other type can have this destructor, because
// the type is final.
inline bool is_ndarray(PyObject* object) { return Py_TYPE(object)->tp_dealloc == dealloc_array; }
inline bool is_ndarray(pybind11::handle object) { return is_ndarray(object.ptr()); }

// Returns the tensor of an object that is an ndarray. Throws std::bad_alloc.
Tensor& tensor_of(pybind11::handle array);
// Returns the tensor of an ndarray, null for any other object.
inline const Tensor* tensor_or_null(pybind11::handle value) { return is_ndarray(value) ? &tensor_of(value) : nullptr; }

// Return a new reference; they throw pybind11::error_already_set where there is no memory.
PyObject* new_array(Tensor tensor);
// The same for a tensor that may be a view of the array `base`, which then has no base.
PyObject* new_view(Tensor tensor, PyObject* base);
PyObject* new_number(DType dtype, const std::byte* address);  // an array without dimensions, of the number at the address

// Calls f, which returns a new reference or null with a Python error, and translates C++ exceptions to Python's.
template <class Function>
PyObject* translated(Function&& f) noexcept {
  try {
    return f();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (...) {
    pybind11::detail::try_translate_exceptions();
  }
  return nullptr;
}

}  // namespace walle

namespace pybind11::detail {

template <>
class type_caster<walle::Tensor> {
 public:
  static constexpr auto name = const_name("ndarray");
  template <class T>
  using cast_op_type = detail::cast_op_type<T>;

  bool load(handle source, bool) {
    if (!source || !walle::is_ndarray(source)) return false;
    tensor_ = &walle::tensor_of(source);
    return true;
  }
  operator walle::Tensor*() { return tensor_; }
  operator walle::Tensor&() { return *tensor_; }
  static handle cast(walle::Tensor tensor, return_value_policy, handle) { return walle::new_array(std::move(tensor)); }

 private:
  walle::Tensor* tensor_ = nullptr;
};

}  // namespace pybind11::detail
