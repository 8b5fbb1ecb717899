#include "bindings/array_object.h"

#include <cstring>
#include <new>

#include "core/work_context.h"

namespace py = pybind11;

namespace walle {

namespace {

constexpr const char* kStateKey = "walle.array_types";

void delete_types(PyObject* capsule) {
  auto* types = static_cast<ArrayTypes*>(PyCapsule_GetPointer(capsule, kStateKey));
  for (PyObject* dtype : types->dtypes) Py_XDECREF(dtype);
  Py_XDECREF(types->array);
  Py_XDECREF(types->iterator);
  Py_XDECREF(types->recorded);
  Py_XDECREF(types->recorder);
  delete types;
}

// Returns this interpreter's types, empty ones at first.
ArrayTypes* find_types() {
  const py::handle state(PyInterpreterState_GetDict(PyInterpreterState_Get()));
  if (!state) throw std::bad_alloc();
  if (PyObject* found = PyDict_GetItemString(state.ptr(), kStateKey))
    return static_cast<ArrayTypes*>(PyCapsule_GetPointer(found, kStateKey));
  auto types = std::make_unique<ArrayTypes>();
  const auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(types.get(), kStateKey, delete_types));
  if (!capsule) throw py::error_already_set();
  ArrayTypes* created = types.release();
  if (PyDict_SetItemString(state.ptr(), kStateKey, capsule.ptr()) < 0) throw py::error_already_set();
  return created;
}

// The vectors of a Tensor's shape and strides, which malloc rounds up, are beside the Python object: they are counted on the
// thread that makes or frees the array.
constexpr std::int64_t kVectorBytes = 2 * 32;

void count_vectors(std::int64_t bytes) noexcept {
  if (WorkContext* context = current_work_context().get()) context->engine_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

ArrayObject* allocate() {
  PyTypeObject* type = array_types().array;
  auto* object = PyObject_New(ArrayObject, type);
  if (object == nullptr) throw py::error_already_set();
  object->weak_references = nullptr;
  object->base = nullptr;
  return object;
}

}  // namespace

const ArrayTypes& array_types() {
  thread_local std::int64_t interpreter = -1;
  thread_local const ArrayTypes* types = nullptr;
  if (const std::int64_t current = PyInterpreterState_GetID(PyInterpreterState_Get()); current != interpreter) {
    types = find_types();
    interpreter = current;
  }
  return *types;
}

ArrayTypes& mutable_array_types() { return const_cast<ArrayTypes&>(array_types()); }

void dealloc_array(PyObject* self) {
  auto* array = reinterpret_cast<ArrayObject*>(self);
  if (array->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  if (!array->has_number) count_vectors(-kVectorBytes);
  array->tensor.~Tensor();
  Py_XDECREF(array->base);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

Tensor& tensor_of(py::handle object) {
  auto* array = reinterpret_cast<ArrayObject*>(object.ptr());
  if (array->has_number) {
    Tensor tensor = Tensor::empty(array->dtype, {});
    std::memcpy(tensor.raw(), array->number, item_size(array->dtype));
    array->tensor = std::move(tensor);
    array->has_number = false;
    count_vectors(kVectorBytes);
  }
  return array->tensor;
}

PyObject* new_array(Tensor tensor) {
  ArrayObject* object = allocate();
  new (&object->tensor) Tensor(std::move(tensor));
  object->has_number = false;
  count_vectors(kVectorBytes);
  return reinterpret_cast<PyObject*>(object);
}

PyObject* new_view(Tensor tensor, PyObject* base) {
  auto* owner = reinterpret_cast<ArrayObject*>(base);
  const bool is_view = tensor.storage() == owner->tensor.storage();
  PyObject* array = new_array(std::move(tensor));
  if (is_view) reinterpret_cast<ArrayObject*>(array)->base = Py_NewRef(owner->base != nullptr ? owner->base : base);
  return array;
}

PyObject* new_number(DType dtype, const std::byte* address) {
  ArrayObject* object = allocate();
  new (&object->tensor) Tensor();
  object->has_number = true;
  object->dtype = dtype;
  std::memcpy(object->number, address, item_size(dtype));
  return reinterpret_cast<PyObject*>(object);
}

}  // namespace walle
