// The Python type RowBatch, and packed_value. One call for each output is what they are measured by, so they are written against
// Python's C API (docs/adr/0018-triggers.md).
#include <memory>
#include <new>

#include "bindings/store/packed_value.h"
#include "bindings/store/row_batch.h"
#include "bindings/stream/packed_size.h"

namespace walle {

namespace {

struct BatchObject {
  PyObject_HEAD RowBatch* batch;
};

RowBatch& batch_of(PyObject* self) { return *reinterpret_cast<BatchObject*>(self)->batch; }

// Calls `body`, which returns an object or a null pointer with a Python error. No C++ exception may leave it.
template <typename Body>
PyObject* without_exceptions(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

bool parse_limits(PyObject* arguments, RowBatch::Limits& limits) {
  long long rows = 0, size_bytes = 0, used = 0, upload_bytes = 0, due_rows = 0;
  if (!PyArg_ParseTuple(arguments, "LLLLL", &rows, &size_bytes, &used, &upload_bytes, &due_rows)) return false;
  limits = {rows, size_bytes, used, upload_bytes, due_rows};
  return true;
}

// RowBatch(rows, size_bytes, used, upload_bytes, due_rows): the limits
PyObject* batch_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  RowBatch::Limits limits;
  if (!parse_limits(arguments, limits)) return nullptr;
  return without_exceptions([&]() -> PyObject* {
    auto batch = std::make_unique<RowBatch>();
    batch->set_limits(limits);
    auto* self = reinterpret_cast<BatchObject*>(type->tp_alloc(type, 0));
    if (self != nullptr) self->batch = batch.release();
    return reinterpret_cast<PyObject*>(self);
  });
}

PyObject* batch_set_limits(PyObject* self, PyObject* arguments) {
  RowBatch::Limits limits;
  if (!parse_limits(arguments, limits)) return nullptr;
  batch_of(self).set_limits(limits);
  Py_RETURN_NONE;
}

void batch_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<BatchObject*>(self)->batch;
  type->tp_free(self);
  Py_DECREF(type);
}

Py_ssize_t batch_length(PyObject* self) { return static_cast<Py_ssize_t>(batch_of(self).size()); }
PyObject* batch_uploads(PyObject* self, void*) { return PyLong_FromSize_t(batch_of(self).uploads()); }
PyObject* batch_size_bytes(PyObject* self, void*) { return PyLong_FromLongLong(batch_of(self).size_bytes()); }
PyObject* batch_upload_bytes(PyObject* self, void*) { return PyLong_FromLongLong(batch_of(self).upload_bytes()); }

// Adds rows by `append` within the limits, or beyond them if `forced`. Returns whether the caller has to start a write, None if
// the batch has no room; a null pointer with a Python error.
template <typename Append>
PyObject* append_within_limits(RowBatch& batch, bool forced, Append append) {
  const std::size_t before = batch.size(), uploads_before = batch.uploads();
  const bool was_empty = !batch.has_uploads();
  if (!forced && !batch.is_open()) Py_RETURN_NONE;
  return without_exceptions([&]() -> PyObject* {
    if (append() < 0) return nullptr;
    if (!forced && !was_empty && batch.uploads() > uploads_before && !batch.is_within_uploads()) {
      batch.cut(before);
      Py_RETURN_NONE;
    }
    return PyBool_FromLong(batch.is_due());
  });
}

// Returns milliseconds of a time in seconds; -1 with a Python error if it is none.
std::int64_t milliseconds(PyObject* seconds) {
  const double value = PyFloat_AsDouble(seconds) * 1000;
  if (PyErr_Occurred() != nullptr) return -1;
  if (value > -1e18 && value < 1e18) return static_cast<std::int64_t>(value);
  PyErr_Format(PyExc_ValueError, "%R is not a time in seconds", seconds);
  return -1;
}

// append_value(topic, value, upload, since_s, position, max_payload_bytes); None also if Python must encode or refuse the value
PyObject* batch_append_value(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6)
    return PyErr_Format(PyExc_TypeError,
                        "append_value() takes topic, value, upload, since_s, position and max_payload_bytes, got %zd arguments",
                        count);
  const int upload = PyObject_IsTrue(arguments[2]);
  const std::int64_t ts_ms = PyErr_Occurred() != nullptr ? -1 : milliseconds(arguments[3]);
  const long long position = PyErr_Occurred() != nullptr ? -1 : PyLong_AsLongLong(arguments[4]);
  const long long max_bytes = PyErr_Occurred() != nullptr ? -1 : PyLong_AsLongLong(arguments[5]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  RowBatch& batch = batch_of(self);
  if (!batch.is_open()) Py_RETURN_NONE;
  const std::int64_t size = packed_size(arguments[1]);
  if (size < 0 || size > max_bytes) Py_RETURN_NONE;
  return append_within_limits(batch, false,
                              [&] { return batch.append_value(arguments[0], arguments[1], size, upload == 1, ts_ms, position); });
}

// append_all(outputs, since_s, position, forced=False)
PyObject* batch_append_all(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 && count != 4)
    return PyErr_Format(PyExc_TypeError, "append_all() takes outputs, since_s, position and forced, got %zd arguments", count);
  const std::int64_t ts_ms = milliseconds(arguments[1]);
  const long long position = PyErr_Occurred() != nullptr ? -1 : PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  RowBatch& batch = batch_of(self);
  return append_within_limits(batch, count == 4 && arguments[3] == Py_True,
                              [&] { return batch.append_all(arguments[0], ts_ms, position); });
}

PyObject* batch_take(PyObject* self, PyObject* other) {
  if (Py_TYPE(other) != Py_TYPE(self))
    return PyErr_Format(PyExc_TypeError, "take() takes a RowBatch, got %s", Py_TYPE(other)->tp_name);
  return without_exceptions([&]() -> PyObject* {
    batch_of(self).take(batch_of(other));
    Py_RETURN_NONE;
  });
}

PyObject* batch_clear(PyObject* self, PyObject*) {
  batch_of(self).clear();
  Py_RETURN_NONE;
}

PyObject* batch_topics(PyObject* self, PyObject*) { return batch_of(self).topics(); }

// feature_parameters(first, count) -> (whether the rows have one topic, parameters)
PyObject* batch_feature_parameters(PyObject* self, PyObject* arguments) {
  Py_ssize_t first = 0, count = 0;
  if (!PyArg_ParseTuple(arguments, "nn", &first, &count)) return nullptr;
  bool one_topic = false;
  PyObject* parameters =
      batch_of(self).feature_parameters(static_cast<std::size_t>(first), static_cast<std::size_t>(count), one_topic);
  return parameters == nullptr ? nullptr : Py_BuildValue("NN", PyBool_FromLong(one_topic), parameters);
}

// upload_parameters(first, count, last_seq, last_chain) -> (whether the rows have one topic, parameters, last_seq, last_chain)
PyObject* batch_upload_parameters(PyObject* self, PyObject* arguments) {
  Py_ssize_t first = 0, count = 0;
  long long last_seq = 0;
  unsigned long long last_chain = 0;
  if (!PyArg_ParseTuple(arguments, "nnLK", &first, &count, &last_seq, &last_chain)) return nullptr;
  std::int64_t seq = last_seq;
  std::uint64_t chain = last_chain;
  bool one_topic = false;
  PyObject* parameters =
      batch_of(self).upload_parameters(static_cast<std::size_t>(first), static_cast<std::size_t>(count), seq, chain, one_topic);
  if (parameters == nullptr) return nullptr;
  return Py_BuildValue("NNLK", PyBool_FromLong(one_topic), parameters, static_cast<long long>(seq),
                       static_cast<unsigned long long>(chain));
}

PyObject* packed_value_of(PyObject*, PyObject* value) {
  PyObject* bytes = packed_value(value);
  if (bytes == nullptr && PyErr_Occurred() == nullptr) Py_RETURN_NONE;
  return bytes;
}

template <typename Function>
PyCFunction as_batch_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef batch_methods[] = {{"append_value", as_batch_method(batch_append_value), METH_FASTCALL, nullptr},
                               {"append_all", as_batch_method(batch_append_all), METH_FASTCALL, nullptr},
                               {"set_limits", batch_set_limits, METH_VARARGS, nullptr},
                               {"take", batch_take, METH_O, nullptr},
                               {"clear", batch_clear, METH_NOARGS, nullptr},
                               {"topics", batch_topics, METH_NOARGS, nullptr},
                               {"feature_parameters", batch_feature_parameters, METH_VARARGS, nullptr},
                               {"upload_parameters", batch_upload_parameters, METH_VARARGS, nullptr},
                               {nullptr, nullptr, 0, nullptr}};
PyGetSetDef batch_properties[] = {{"uploads", batch_uploads, nullptr, nullptr, nullptr},
                                  {"size_bytes", batch_size_bytes, nullptr, nullptr, nullptr},
                                  {"upload_bytes", batch_upload_bytes, nullptr, nullptr, nullptr},
                                  {nullptr, nullptr, nullptr, nullptr, nullptr}};
// No garbage collection: a batch refers to nothing but exact str and bytes.
PyType_Slot batch_slots[] = {{Py_tp_new, reinterpret_cast<void*>(batch_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(batch_dealloc)},
                             {Py_tp_methods, batch_methods},
                             {Py_tp_getset, batch_properties},
                             {Py_sq_length, reinterpret_cast<void*>(batch_length)},
                             {0, nullptr}};
PyType_Spec batch_spec = {"walle.engine_ext._core.RowBatch", sizeof(BatchObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, batch_slots};
PyMethodDef store_functions[] = {{"packed_value", packed_value_of, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_store_types(PyObject* module) {
  PyObject* type = PyType_FromSpec(&batch_spec);
  const int failed = type == nullptr ? -1 : PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
  Py_XDECREF(type);
  return failed < 0 ? -1 : PyModule_AddFunctions(module, store_functions);
}

}  // namespace walle
