// Task code calls this type, and is hostile: objects are immutable and whole from their creation, the type cannot be
// instantiated, subclassed or changed, and every length in the bytes is checked where it is read.
#include "bindings/stream/event_grouping.h"

#include <memory>
#include <utility>

#include "bindings/stream/event_aggregates.h"
#include "bindings/stream/event_view.h"

namespace walle::columns {

PyObject* new_groups(std::shared_ptr<Batch> batch, stream::EventGroups groups) {
  PyTypeObject* type = batch->groups_type;
  return create(type, std::make_unique<Groups>(Groups{std::move(batch), std::move(groups)}));
}

namespace {

Py_ssize_t groups_length(PyObject* self) { return static_cast<Py_ssize_t>(groups_of(self).groups.count); }

// by(field)
PyObject* groups_by(PyObject* self, PyObject* field) {
  return call_checked([&]() -> PyObject* {
    std::string_view name;
    if (!read_text(field, "the field", name)) return nullptr;
    const Groups& groups = groups_of(self);
    return new_groups(groups.batch, stream::group_by(groups.groups, name));
  });
}

// windows(kind, size_ms, every_ms, offset_ms); kind 0: tumbling, 1: sliding, 2: session.
PyObject* groups_windows(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("windows", count, 4)) return nullptr;
  long long numbers[4];
  for (int i = 0; i < 4; ++i) {
    numbers[i] = PyLong_AsLongLong(arguments[i]);
    if (numbers[i] == -1 && PyErr_Occurred() != nullptr) {
      if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        return refuse({"window", "a length in ms is beyond 2^53"});
      }
      return nullptr;
    }
  }
  if (numbers[0] < 0 || numbers[0] > 2) return PyErr_Format(PyExc_ValueError, "unknown kind of window");
  return call_checked([&] {
    const Groups& groups = groups_of(self);
    return new_groups(groups.batch, stream::split_by_window(groups.groups, static_cast<stream::WindowKind>(numbers[0]),
                                                            numbers[1], numbers[2], numbers[3]));
  });
}

// keys(): a dict of the groups' keys, a list for each field.
PyObject* groups_keys(PyObject* self, PyObject*) {
  return call_checked([&] {
    const Groups& groups = groups_of(self);
    PyObject* keys = PyDict_New();
    for (const auto& key : groups.groups.keys) {
      if (keys == nullptr) break;
      PyObject* name = PyUnicode_FromStringAndSize(key.name.data(), static_cast<Py_ssize_t>(key.name.size()));
      PyObject* values = name == nullptr ? nullptr : make_list(key.values.size(), [&](std::size_t i) {
        return key.ids.empty() ? groups.batch->object(key.values[i]) : groups.batch->text(key.ids[i]);
      });
      if (values == nullptr || PyDict_SetItem(keys, name, values) < 0) Py_CLEAR(keys);
      Py_XDECREF(name);
      Py_XDECREF(values);
    }
    return keys;
  });
}

// views(): a view of each group.
PyObject* groups_views(PyObject* self, PyObject*) {
  return call_checked([&] {
    const Groups& groups = groups_of(self);
    const stream::Vector<std::uint64_t> counts = stream::count_rows(groups.groups);
    stream::Vector<Rows> rows(groups.groups.count);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].reserve(counts[i]);
    for (std::size_t i = 0; i < groups.groups.rows.size(); ++i) rows[groups.groups.groups[i]].push_back(groups.groups.rows[i]);
    return make_list(rows.size(), [&](std::size_t i) { return new_view(groups.batch, std::move(rows[i])); });
  });
}

// aggregate(((field or None, aggregation), ...)): a list for each pair, with a result for each group.
PyObject* groups_aggregate(PyObject* self, PyObject* pairs) {
  if (!PyTuple_CheckExact(pairs)) return PyErr_Format(PyExc_TypeError, "aggregate() takes a tuple of pairs");
  return call_checked([&]() -> PyObject* {
    const Groups& groups = groups_of(self);
    const EventBatch& events = *groups.batch->events;
    std::vector<std::pair<std::string_view, stream::Vector<Value>>> columns;  // columns that were read; the names are in `pairs`
    columns.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(pairs)));
    const stream::Vector<Value> none;
    PyObject* results = PyList_New(PyTuple_GET_SIZE(pairs));
    for (Py_ssize_t i = 0; results != nullptr && i < PyTuple_GET_SIZE(pairs); ++i) {
      PyObject* pair = PyTuple_GET_ITEM(pairs, i);
      PyObject* result = nullptr;
      std::string_view field;
      Function function{};
      if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "an aggregation is a pair of field and function");
      } else if (read_function(PyTuple_GET_ITEM(pair, 1), function) &&
                 (PyTuple_GET_ITEM(pair, 0) == Py_None || read_text(PyTuple_GET_ITEM(pair, 0), "the field", field))) {
        try {
          const stream::Vector<Value>* values = &none;
          if (PyTuple_GET_ITEM(pair, 0) == Py_None) {
            if (function != Function::count) throw EventFault{"aggregation", "needs a field, unless it is count"};
          } else {
            for (const auto& [name, read] : columns)
              if (name == field) values = &read;
            if (values == &none) {
              columns.emplace_back(field, events.fields(groups.groups.rows, FieldPath(field), field));
              values = &columns.back().second;
            }
          }
          result = aggregate(groups, function, field, *values);
        } catch (...) {
          Py_DECREF(results);
          throw;
        }
      }
      if (result == nullptr)
        Py_CLEAR(results);
      else
        PyList_SET_ITEM(results, i, result);
    }
    return results;
  });
}

PyMethodDef groups_methods[] = {{"by", groups_by, METH_O, nullptr},
                                {"windows", fast_method(groups_windows), METH_FASTCALL, nullptr},
                                {"keys", groups_keys, METH_NOARGS, nullptr},
                                {"views", groups_views, METH_NOARGS, nullptr},
                                {"aggregate", groups_aggregate, METH_O, nullptr},
                                {nullptr, nullptr, 0, nullptr}};
PyType_Slot groups_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc<Groups>)},
                              {Py_tp_methods, groups_methods},
                              {Py_sq_length, reinterpret_cast<void*>(groups_length)},
                              {0, nullptr}};

}  // namespace

PyType_Spec groups_spec = {"walle.engine_ext._core.EventGroups", sizeof(Object<Groups>), 0, kTypeFlags, groups_slots};

}  // namespace walle::columns
