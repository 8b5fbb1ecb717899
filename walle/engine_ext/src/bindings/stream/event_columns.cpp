// Task code calls these functions, and is hostile: what it can replace in the module is checked, and so is every length in the
// bytes where it is read.
#include "bindings/stream/event_columns.h"

#include <memory>

#include "bindings/stream/encoded.h"
#include "bindings/stream/event_grouping.h"
#include "bindings/stream/event_plan.h"
#include "bindings/stream/event_view.h"
#include "stream/json_events.h"

namespace walle {

namespace {

using namespace columns;

// Returns false with a Python error where the module's attribute, which task code can set, is not its type.
bool read_type(PyObject* module, const char* name, destructor of_ours, PyTypeObject*& type) {
  PyObject* found = PyObject_GetAttrString(module, name);
  if (found == nullptr) return false;
  type = reinterpret_cast<PyTypeObject*>(found);
  const bool is_ours = PyType_Check(found) && type->tp_dealloc == of_ours;
  Py_DECREF(found);  // the module keeps it
  if (!is_ours) PyErr_Format(PyExc_TypeError, "_core.%s was replaced", name);
  return is_ours;
}

bool read_types(PyObject* module, Types& types) {
  return read_type(module, "EventView", dealloc<View>, types.view) &&
         read_type(module, "EventGroups", dealloc<Groups>, types.groups);
}

// open_events(bytes): a view of events that encode_events encoded. Keeps the bytes.
PyObject* open_events(PyObject* module, PyObject* bytes) {
  if (!PyBytes_CheckExact(bytes))
    return PyErr_Format(PyExc_TypeError, "events must be bytes, are %.200s", Py_TYPE(bytes)->tp_name);
  Types types{};
  if (!read_types(module, types)) return nullptr;
  return call_checked([&] {
    const std::shared_ptr<const void> owner(Py_NewRef(bytes), [](PyObject* kept) { Py_DECREF(kept); });
    auto batch = std::make_shared<EventBatch>(owner, reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(bytes)),
                                              static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
    batch->read_all();
    return view_of_batch(types, std::move(batch));
  });
}

// read_json_events(bytes): a view of events in JSON: a list of objects, or one object after the other.
PyObject* read_json_events(PyObject* module, PyObject* json) {
  Types types{};
  Py_buffer buffer;
  if (!read_types(module, types) || PyObject_GetBuffer(json, &buffer, PyBUF_SIMPLE) < 0) return nullptr;
  PyObject* view = call_checked([&] {
    return view_of_batch(types,
                         stream::read_json_events({static_cast<const char*>(buffer.buf), static_cast<std::size_t>(buffer.len)}));
  });
  PyBuffer_Release(&buffer);
  return view;
}

PyObject* encode(PyObject* given, bool lenient) {
  PyObject* names[5] = {};
  static constexpr const char* kNames[] = {"encoded", "event_id", "page_id", "ts_ms", "contents"};
  PyObject* events = PySequence_Tuple(given);
  for (int i = 0; i < 5 && events != nullptr; ++i)
    if ((names[i] = PyUnicode_InternFromString(kNames[i])) == nullptr) Py_CLEAR(events);
  PyObject* result = events == nullptr ? nullptr : call_checked([&]() -> PyObject* {
    stream::Vector<std::uint8_t> out(stream::kMaxHeadBytes);
    const Py_ssize_t count = PyTuple_GET_SIZE(events);
    out.resize(static_cast<std::size_t>(stream::write_list_head(out.data(), static_cast<std::uint32_t>(count)) - out.data()));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* event = PyTuple_GET_ITEM(events, i);
      PyObject* encoded = nullptr;
      const int has_encoded = PyObject_GetOptionalAttr(event, names[0], &encoded);
      if (has_encoded < 0) return nullptr;
      if (has_encoded > 0) {
        const bool is_bytes = PyBytes_CheckExact(encoded);
        if (is_bytes) {
          const auto* from = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(encoded));
          out.insert(out.end(), from, from + PyBytes_GET_SIZE(encoded));
        }
        Py_DECREF(encoded);
        if (is_bytes) continue;
      }
      out.push_back(0x94);
      for (int field = 1; field < 5; ++field) {
        PyObject* value = PyObject_GetAttr(event, names[field]);
        if (value == nullptr) return nullptr;
        const bool is_whole = append_packed(value, out, lenient && field == 4);
        Py_DECREF(value);
        if (!is_whole) Py_RETURN_NONE;
      }
    }
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(out.data()), static_cast<Py_ssize_t>(out.size()));
  });
  for (PyObject* name : names) Py_XDECREF(name);
  Py_XDECREF(events);
  return result;
}

// encode_events(events): the bytes of a list of events, None where walle.base.plain must decide. An event with an attribute
// `encoded` is copied from there.
PyObject* encode_events(PyObject*, PyObject* events) { return encode(events, false); }

// encode_columns(events): as encode_events, but columns do not have the values in contents on which walle.base.plain must decide.
PyObject* encode_columns(PyObject*, PyObject* events) { return encode(events, true); }

// unpack_event(bytes): the four fields of an encoded event.
PyObject* unpack_event(PyObject*, PyObject* bytes) {
  if (!PyBytes_CheckExact(bytes)) return PyErr_Format(PyExc_TypeError, "an event must be bytes");
  const auto* data = reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(bytes));
  stream::PackedReader reader(data, static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
  return object_of(reader, data);
}

// compile_plan(template, is_selections): an EventPlan, of a dict of event ids and dicts of steps, or else of one result.
PyObject* compile_plan(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  PyTypeObject* type = nullptr;
  if (!check_count("compile_plan", count, 2) || !read_type(module, "EventPlan", dealloc<Plan>, type)) return nullptr;
  const Owned encoded_type(encoded_type_of(module));
  if (encoded_type.get() == nullptr) return nullptr;
  return call_checked(
      [&] { return new_plan(type, reinterpret_cast<PyTypeObject*>(encoded_type.get()), arguments[0], arguments[1] == Py_True); });
}

PyType_Slot plan_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc<Plan>)}, {0, nullptr}};

PyType_Spec plan_spec = {"walle.engine_ext._core.EventPlan", sizeof(Object<Plan>), 0, kTypeFlags, plan_slots};

PyMethodDef functions[] = {{"open_events", open_events, METH_O, nullptr},
                           {"read_json_events", read_json_events, METH_O, nullptr},
                           {"encode_events", encode_events, METH_O, nullptr},
                           {"encode_columns", encode_columns, METH_O, nullptr},
                           {"unpack_event", unpack_event, METH_O, nullptr},
                           {"compile_plan", fast_method(compile_plan), METH_FASTCALL, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_event_columns(PyObject* module) {
  for (PyType_Spec* spec : {&view_spec, &groups_spec, &plan_spec, &encoded_spec}) {
    PyObject* type = PyType_FromSpec(spec);
    const int failed = type == nullptr ? -1 : PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
    Py_XDECREF(type);
    if (failed < 0) return -1;
  }
  return PyModule_AddFunctions(module, functions);
}

}  // namespace walle
