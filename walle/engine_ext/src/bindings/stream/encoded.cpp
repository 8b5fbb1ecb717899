#include "bindings/stream/encoded.h"

#include "bindings/stream/event_objects.h"

namespace walle {

namespace {

using columns::Object;
using columns::Owned;

const Encoded& encoded_state_of(PyObject* self) { return *reinterpret_cast<Object<Encoded>*>(self)->state; }

void encoded_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (const Encoded* state = reinterpret_cast<Object<Encoded>*>(self)->state; state != nullptr) {
    Py_DECREF(state->bytes);
    delete state;
  }
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* encoded_decode(PyObject* self, PyObject*) {
  PyObject* bytes = encoded_state_of(self).bytes;
  const auto* data = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(bytes));
  stream::PackedReader reader(data, static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
  return object_of(reader, data);
}

PyObject* encoded_data(PyObject* self, void*) { return Py_NewRef(encoded_state_of(self).bytes); }

PyObject* encoded_compare(PyObject* self, PyObject* other, int operation) {
  const Encoded* right = as_encoded(other);
  if (right == nullptr || (operation != Py_EQ && operation != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  return PyObject_RichCompare(encoded_state_of(self).bytes, right->bytes, operation);
}

Py_hash_t encoded_hash(PyObject* self) { return PyObject_Hash(encoded_state_of(self).bytes); }

PyObject* encoded_repr(PyObject* self) {
  return PyUnicode_FromFormat("<Encoded plain data of %zd bytes>", PyBytes_GET_SIZE(encoded_state_of(self).bytes));
}

PyMethodDef encoded_methods[] = {
    {"decode", encoded_decode, METH_NOARGS, "Return the value: None, bool, int, float, str, bytes, list or dict."},
    {"__plain__", encoded_decode, METH_NOARGS, "Return the value, for walle.base.plain."},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef encoded_properties[] = {{"data", encoded_data, nullptr, "The bytes, as walle.base.plain encodes the value.", nullptr},
                                    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot encoded_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(encoded_dealloc)},
                               {Py_tp_methods, encoded_methods},
                               {Py_tp_getset, encoded_properties},
                               {Py_tp_richcompare, reinterpret_cast<void*>(encoded_compare)},
                               {Py_tp_hash, reinterpret_cast<void*>(encoded_hash)},
                               {Py_tp_repr, reinterpret_cast<void*>(encoded_repr)},
                               {0, nullptr}};

}  // namespace

PyType_Spec encoded_spec = {"walle.engine_ext._core.Encoded", sizeof(Object<Encoded>), 0, columns::kTypeFlags, encoded_slots};

const Encoded* as_encoded(PyObject* object) noexcept {
  return Py_TYPE(object)->tp_dealloc == encoded_dealloc ? reinterpret_cast<Object<Encoded>*>(object)->state : nullptr;
}

PyObject* new_encoded(PyTypeObject* type, std::string_view bytes, int depth) {
  Owned copy(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
  auto* self = copy.get() == nullptr ? nullptr : reinterpret_cast<Object<Encoded>*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->state = new (std::nothrow) Encoded{copy.get(), depth};
  if (self->state == nullptr) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  (void)copy.release();
  return reinterpret_cast<PyObject*>(self);
}

PyObject* encoded_type_of(PyObject* module) {
  Owned found(PyObject_GetAttrString(module, "Encoded"));
  if (found.get() == nullptr) return nullptr;
  if (PyType_Check(found.get()) && reinterpret_cast<PyTypeObject*>(found.get())->tp_dealloc == encoded_dealloc)
    return found.release();
  PyErr_SetString(PyExc_TypeError, "_core.Encoded was replaced");
  return nullptr;
}

PyObject* new_encoded_here(std::string_view bytes, int depth) {
  const Owned name(PyUnicode_FromString("walle.engine_ext._core"));
  const Owned module(name.get() == nullptr ? nullptr : PyImport_GetModule(name.get()));
  if (module.get() == nullptr) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ImportError, "walle.engine_ext._core is not loaded");
    return nullptr;
  }
  const Owned type(encoded_type_of(module.get()));
  return type.get() == nullptr ? nullptr : new_encoded(reinterpret_cast<PyTypeObject*>(type.get()), bytes, depth);
}

}  // namespace walle
