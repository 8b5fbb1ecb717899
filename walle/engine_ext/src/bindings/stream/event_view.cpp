// Task code calls this type, and is hostile: objects are immutable and whole from their creation, the type cannot be
// instantiated, subclassed or changed, and every length in the bytes is checked where it is read.
#include "bindings/stream/event_view.h"

#include <memory>
#include <utility>

#include "bindings/stream/event_grouping.h"
#include "bindings/stream/event_plan.h"

namespace walle::columns {

PyObject* new_view(std::shared_ptr<Batch> batch, Rows rows) {
  PyTypeObject* type = batch->view_type;
  return create(type, std::make_unique<View>(View{std::move(batch), std::move(rows)}));
}

PyObject* view_of_batch(Types types, std::shared_ptr<const EventBatch> events) {
  auto batch = std::make_shared<Batch>(std::move(events), types);
  Rows rows(batch->events->size());
  for (std::uint32_t i = 0; i < rows.size(); ++i) rows[i] = i;
  return new_view(std::move(batch), std::move(rows));
}

namespace {

template <typename Test>
PyObject* select(PyObject* self, Test test) {
  const View& view = view_of(self);
  Rows rows(view.rows.size());
  std::size_t kept = 0;
  for (const std::uint32_t row : view.rows) {
    rows[kept] = row;
    kept += test(row) ? 1 : 0;
  }
  rows.resize(kept);
  return new_view(view.batch, std::move(rows));
}

Py_ssize_t view_length(PyObject* self) { return static_cast<Py_ssize_t>(view_of(self).rows.size()); }

// named(event_id or None, page_id or None, either): with `either` one of the two is enough.
PyObject* view_named(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("named", count, 3)) return nullptr;
  return call_checked([&]() -> PyObject* {
    const EventBatch& events = *view_of(self).batch->events;
    constexpr std::uint32_t kAny = UINT32_MAX, kAbsent = UINT32_MAX - 1;
    std::uint32_t ids[2];
    for (int i = 0; i < 2; ++i) {
      ids[i] = kAny;
      if (arguments[i] == Py_None) continue;
      std::string_view text;
      if (!read_text(arguments[i], i == 0 ? "event_id" : "page_id", text)) return nullptr;
      ids[i] = events.find_id(text).value_or(kAbsent);
    }
    const std::uint32_t *event_ids = events.event_ids(), *page_ids = events.page_ids();
    if (arguments[2] == Py_True)
      return select(self, [&](std::uint32_t row) { return event_ids[row] == ids[0] || page_ids[row] == ids[1]; });
    return select(self, [&](std::uint32_t row) {
      return (ids[0] == kAny || event_ids[row] == ids[0]) && (ids[1] == kAny || page_ids[row] == ids[1]);
    });
  });
}

// between(start_ms, end_ms)
PyObject* view_between(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("between", count, 2)) return nullptr;
  std::int64_t bounds[2];
  for (int i = 0; i < 2; ++i) {
    int overflow = 0;
    bounds[i] = PyLong_AsLongLongAndOverflow(arguments[i], &overflow);
    if (overflow != 0) bounds[i] = overflow < 0 ? INT64_MIN : INT64_MAX;
    if (overflow == 0 && bounds[i] == -1 && PyErr_Occurred() != nullptr) return nullptr;
  }
  return call_checked([&] {
    const std::int64_t* times = view_of(self).batch->events->times();
    return select(self, [&](std::uint32_t row) { return times[row] >= bounds[0] && times[row] < bounds[1]; });
  });
}

enum class Comparison : std::uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };

bool read_comparison(PyObject* object, Comparison& comparison) {
  static constexpr std::string_view kNames[] = {"==", "!=", "<", "<=", ">", ">="};
  std::string_view text;
  if (!read_text(object, "the comparison", text)) return false;
  for (int i = 0; i < 6; ++i) {
    if (text != kNames[i]) continue;
    comparison = static_cast<Comparison>(i);
    return true;
  }
  refuse({"comparison", "must be one of == != < <= > >="});
  return false;
}

bool passes(int order, Comparison comparison) noexcept {  // order 2: NaN, which only != passes
  switch (comparison) {
    case Comparison::equal: return order == 0;
    case Comparison::not_equal: return order != 0;
    case Comparison::less: return order == -1;
    case Comparison::less_equal: return order == -1 || order == 0;
    case Comparison::greater: return order == 1;
    default: return order == 1 || order == 0;
  }
}

// where(field, comparison, value): as walle.protocol.ContentsTest.
PyObject* view_where(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("where", count, 3)) return nullptr;
  return call_checked([&]() -> PyObject* {
    std::string_view name, text;
    Comparison comparison{};
    if (!read_text(arguments[0], "the field", name) || !read_comparison(arguments[1], comparison)) return nullptr;
    PyObject* given = arguments[2];
    Value constant;
    if (PyBool_Check(given)) {
      constant.kind = Kind::boolean;
      constant.integer = given == Py_True ? 1 : 0;
      if (comparison != Comparison::equal && comparison != Comparison::not_equal)
        return refuse({"comparison", "must be == or != for a bool"});
    } else if (PyUnicode_Check(given)) {
      constant.kind = Kind::text;
      if (!read_text(given, "the value", text)) return nullptr;
    } else if (PyFloat_Check(given)) {
      constant.kind = Kind::real;
      constant.real = PyFloat_AS_DOUBLE(given);
    } else if (PyLong_Check(given)) {
      int overflow = 0;
      constant = stream::integer_value(PyLong_AsLongLongAndOverflow(given, &overflow));
      if (overflow != 0) return refuse({"value", "an integer needs more than 64 bits"});
    } else {
      return refuse({"value", "must be text, a number or a bool"});
    }
    const View& view = view_of(self);
    const EventBatch& events = *view.batch->events;
    const stream::Vector<Value> values = events.fields(view.rows, FieldPath(name), name);
    std::size_t at = 0;
    return select(self, [&](std::uint32_t) {
      const Value& value = values[at++];
      if (constant.kind == Kind::text) {
        if (value.kind != Kind::text) return false;
        const int order = events.text(value).compare(text);
        return passes(order < 0 ? -1 : order > 0 ? 1 : 0, comparison);
      }
      if (constant.kind == Kind::boolean)
        return value.kind == Kind::boolean && (value.integer == constant.integer) == (comparison == Comparison::equal);
      return value.is_number() && passes(stream::compare_numbers(value, constant), comparison);
    });
  });
}

// take(indices): the events at these places of the view, an exact list.
PyObject* view_take(PyObject* self, PyObject* indices) {
  if (!PyList_CheckExact(indices)) return PyErr_Format(PyExc_TypeError, "take() takes a list");
  return call_checked([&]() -> PyObject* {
    const View& view = view_of(self);
    Rows rows;
    rows.reserve(static_cast<std::size_t>(PyList_GET_SIZE(indices)));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(indices); ++i) {
      const Py_ssize_t index = PyLong_AsSsize_t(PyList_GET_ITEM(indices, i));
      if (index == -1 && PyErr_Occurred() != nullptr) return nullptr;
      if (index < 0 || static_cast<std::size_t>(index) >= view.rows.size())
        return PyErr_Format(PyExc_IndexError, "event %zd of %zd", index, view_length(self));
      rows.push_back(view.rows[static_cast<std::size_t>(index)]);
    }
    return new_view(view.batch, std::move(rows));
  });
}

// slice(start, stop): events from start to stop, which are within the view.
PyObject* view_slice(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("slice", count, 2)) return nullptr;
  const Py_ssize_t start = PyLong_AsSsize_t(arguments[0]);
  const Py_ssize_t stop = PyErr_Occurred() != nullptr ? -1 : PyLong_AsSsize_t(arguments[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (start < 0 || stop < start || stop > view_length(self)) return PyErr_Format(PyExc_IndexError, "slice beyond the events");
  return call_checked([&] {
    const View& view = view_of(self);
    return new_view(view.batch, Rows(view.rows.begin() + start, view.rows.begin() + stop));
  });
}

// row(index): the four fields of an event, as a tuple.
PyObject* fields_of(const View& view, std::uint32_t row) {
  const EventBatch& events = *view.batch->events;
  PyObject* fields = PyTuple_New(4);
  if (fields == nullptr) return nullptr;
  stream::PackedReader reader(events.data(), events.data_size(), events.contents(row).at);
  const auto set = [fields](Py_ssize_t index, PyObject* field) {
    PyTuple_SET_ITEM(fields, index, field);
    return field != nullptr;
  };
  // In turn: no call to Python is made while an error is set.
  const bool is_made = set(0, view.batch->text(events.event_id(row))) && set(1, view.batch->text(events.page_id(row))) &&
                       set(2, PyLong_FromLongLong(events.ts_ms(row))) && set(3, object_of(reader, events.data()));
  if (!is_made) {
    Py_DECREF(fields);
    return nullptr;
  }
  return fields;
}

PyObject* view_row(PyObject* self, PyObject* given) {
  const Py_ssize_t index = PyLong_AsSsize_t(given);
  if (index == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (index < 0 || index >= view_length(self))
    return PyErr_Format(PyExc_IndexError, "event %zd of %zd", index, view_length(self));
  return call_checked([&] { return fields_of(view_of(self), view_of(self).rows[static_cast<std::size_t>(index)]); });
}

// pick(index, fields, default): the fields of one event, a list; `default` where one is missing.
PyObject* view_pick(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("pick", count, 3)) return nullptr;
  const Py_ssize_t index = PyLong_AsSsize_t(arguments[0]);
  if (index == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (index < 0 || index >= view_length(self))
    return PyErr_Format(PyExc_IndexError, "event %zd of %zd", index, view_length(self));
  if (!PyTuple_CheckExact(arguments[1])) return PyErr_Format(PyExc_TypeError, "pick() takes a tuple of fields");
  return call_checked([&]() -> PyObject* {
    const View& view = view_of(self);
    const std::uint32_t row = view.rows[static_cast<std::size_t>(index)];
    stream::Vector<Value> values;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments[1]); ++i) {
      std::string_view name;
      if (!read_text(PyTuple_GET_ITEM(arguments[1], i), "a field", name)) return nullptr;
      values.push_back(view.batch->events->field(row, FieldPath(name)));
    }
    return make_list(values.size(), [&](std::size_t i) {
      return values[i].kind == Kind::missing ? Py_NewRef(arguments[2]) : view.batch->object(values[i]);
    });
  });
}

// indices(): the place of each event in its batch.
PyObject* view_indices(PyObject* self, PyObject*) {
  return call_checked([&] {
    const Rows& rows = view_of(self).rows;
    return make_list(rows.size(), [&](std::size_t i) { return PyLong_FromUnsignedLong(rows[i]); });
  });
}

// rows(): of each event a tuple of its ids, its time, and its bytes.
PyObject* view_rows(PyObject* self, PyObject*) {
  return call_checked([&] {
    const View& view = view_of(self);
    const EventBatch& events = *view.batch->events;
    return make_list(view.rows.size(), [&](std::size_t i) {
      const std::uint32_t row = view.rows[i];
      const std::string_view bytes = events.row(row);
      PyObject* event_id = view.batch->text(events.event_id(row));
      PyObject* page_id = event_id == nullptr ? nullptr : view.batch->text(events.page_id(row));
      if (page_id == nullptr) {
        Py_XDECREF(event_id);
        return static_cast<PyObject*>(nullptr);
      }
      return Py_BuildValue("(NNLy#)", event_id, page_id, static_cast<long long>(events.ts_ms(row)), bytes.data(),
                           static_cast<Py_ssize_t>(bytes.size()));
    });
  });
}

PyObject* view_fields(PyObject* self, PyObject*) {
  return call_checked([&] {
    const View& view = view_of(self);
    return make_list(view.rows.size(), [&](std::size_t i) { return fields_of(view, view.rows[i]); });
  });
}

// Returns the encoded events, a list of them.
PyObject* view_encode(PyObject* self, PyObject*) {
  return call_checked([&] {
    const View& view = view_of(self);
    std::uint8_t head[stream::kMaxHeadBytes];
    std::size_t size =
        static_cast<std::size_t>(stream::write_list_head(head, static_cast<std::uint32_t>(view.rows.size())) - head);
    const std::size_t head_size = size;
    for (const std::uint32_t row : view.rows) size += view.batch->events->row(row).size();
    PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (bytes == nullptr) return bytes;
    char* to = PyBytes_AS_STRING(bytes);
    std::memcpy(to, head, head_size);
    to += head_size;
    for (const std::uint32_t row : view.rows) {
      const std::string_view event = view.batch->events->row(row);
      std::memcpy(to, event.data(), event.size());
      to += event.size();
    }
    return bytes;
  });
}

// column(field, default): the field of each event, `default` where it is missing.
PyObject* view_column(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("column", count, 2)) return nullptr;
  return call_checked([&]() -> PyObject* {
    std::string_view name;
    if (!read_text(arguments[0], "the field", name)) return nullptr;
    const View& view = view_of(self);
    const EventBatch& events = *view.batch->events;
    const FieldPath path(name);
    switch (path.source()) {
      case FieldPath::Source::event_id:
        return make_list(view.rows.size(), [&](std::size_t i) { return view.batch->text(events.event_id(view.rows[i])); });
      case FieldPath::Source::page_id:
        return make_list(view.rows.size(), [&](std::size_t i) { return view.batch->text(events.page_id(view.rows[i])); });
      case FieldPath::Source::time:
        return make_list(view.rows.size(), [&](std::size_t i) { return PyLong_FromLongLong(events.ts_ms(view.rows[i])); });
      default: break;
    }
    const stream::Vector<Value> values = events.fields(view.rows, path, name);
    return make_list(values.size(), [&](std::size_t i) {
      return values[i].kind == Kind::missing ? Py_NewRef(arguments[1]) : view.batch->object(values[i]);
    });
  });
}

// numbers(field, default, limit): the field of each event as a float; `default`, a float, where it is no number, or of more than
// `limit` in size.
PyObject* view_numbers(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("numbers", count, 3)) return nullptr;
  const double limit = PyFloat_AsDouble(arguments[2]);
  if (limit == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return call_checked([&]() -> PyObject* {
    std::string_view name;
    if (!read_text(arguments[0], "the field", name)) return nullptr;
    const View& view = view_of(self);
    const stream::Vector<Value> values = view.batch->events->fields(view.rows, FieldPath(name), name);
    return make_list(values.size(), [&](std::size_t i) {
      const Value& value = values[i];
      return is_within(value, limit) ? PyFloat_FromDouble(real_of(value)) : Py_NewRef(arguments[1]);
    });
  });
}

// texts(field, max_chars, limit): the field of each event as text: the first `max_chars` characters of a text, the digits of an
// integer of at most `limit` in size, "" otherwise.
PyObject* view_texts(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("texts", count, 3)) return nullptr;
  const Py_ssize_t max_chars = PyLong_AsSsize_t(arguments[1]);
  const long long limit = PyErr_Occurred() != nullptr ? -1 : PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return call_checked([&]() -> PyObject* {
    std::string_view name;
    if (!read_text(arguments[0], "the field", name)) return nullptr;
    const View& view = view_of(self);
    const EventBatch& events = *view.batch->events;
    const stream::Vector<Value> values = events.fields(view.rows, FieldPath(name), name);
    return make_list(values.size(), [&](std::size_t i) { return text_object(events, values[i], max_chars, limit); });
  });
}

// spread(field, default or None, limit): (mean, std, q1, median, q3, max) of the field's numbers, as `numbers` reads them; of
// `gap_ms`, of the times between each event and the one before it, 0 where time went back. None leaves out events without a
// number.
PyObject* view_spread(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("spread", count, 3)) return nullptr;
  const double limit = PyFloat_AsDouble(arguments[2]);
  const bool has_default = arguments[1] != Py_None;
  const double fallback = PyErr_Occurred() == nullptr && has_default ? PyFloat_AsDouble(arguments[1]) : 0;
  if (PyErr_Occurred() != nullptr) return nullptr;
  return call_checked([&]() -> PyObject* {
    std::string_view name;
    if (!read_text(arguments[0], "the field", name)) return nullptr;
    const View& view = view_of(self);
    const EventBatch& events = *view.batch->events;
    stream::Vector<Value> found = name == "gap_ms" ? gaps_of(events, view.rows) : events.fields(view.rows, FieldPath(name), name);
    if (name != "gap_ms") keep_numbers(found, has_default ? &fallback : nullptr, limit);
    if (found.empty()) Py_RETURN_NONE;
    const stream::Spread spread = stream::spread_of(found);
    PyObject *mean = mean_of(spread.total), *objects[4];
    for (int i = 0; i < 4; ++i) objects[i] = view.batch->object(spread.quartiles[i]);
    return Py_BuildValue("(NdNNNN)", mean, spread.deviation, objects[0], objects[1], objects[2], objects[3]);
  });
}

PyObject* view_groups(PyObject* self, PyObject*) {
  return call_checked([&] {
    const View& view = view_of(self);
    return new_groups(view.batch, stream::one_group({view.batch->events, view.rows}));
  });
}

// run(plan, values): the results of a plan that compile_plan made. `values` are given by name.
PyObject* view_run(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("run", count, 2)) return nullptr;
  return call_checked([&] { return run_plan(arguments[0], view_of(self), arguments[1]); });
}

// encode_results(plan, values): the same as an Encoded.
PyObject* view_encode_results(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("encode_results", count, 2)) return nullptr;
  return call_checked([&] { return encode_plan(arguments[0], view_of(self), arguments[1]); });
}

PyMethodDef view_methods[] = {{"named", fast_method(view_named), METH_FASTCALL, nullptr},
                              {"between", fast_method(view_between), METH_FASTCALL, nullptr},
                              {"where", fast_method(view_where), METH_FASTCALL, nullptr},
                              {"take", view_take, METH_O, nullptr},
                              {"slice", fast_method(view_slice), METH_FASTCALL, nullptr},
                              {"row", view_row, METH_O, nullptr},
                              {"fields", view_fields, METH_NOARGS, nullptr},
                              {"indices", view_indices, METH_NOARGS, nullptr},
                              {"rows", view_rows, METH_NOARGS, nullptr},
                              {"encode", view_encode, METH_NOARGS, nullptr},
                              {"column", fast_method(view_column), METH_FASTCALL, nullptr},
                              {"pick", fast_method(view_pick), METH_FASTCALL, nullptr},
                              {"numbers", fast_method(view_numbers), METH_FASTCALL, nullptr},
                              {"spread", fast_method(view_spread), METH_FASTCALL, nullptr},
                              {"texts", fast_method(view_texts), METH_FASTCALL, nullptr},
                              {"groups", view_groups, METH_NOARGS, nullptr},
                              {"run", fast_method(view_run), METH_FASTCALL, nullptr},
                              {"encode_results", fast_method(view_encode_results), METH_FASTCALL, nullptr},
                              {nullptr, nullptr, 0, nullptr}};
PyType_Slot view_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc<View>)},
                            {Py_tp_methods, view_methods},
                            {Py_sq_length, reinterpret_cast<void*>(view_length)},
                            {0, nullptr}};

}  // namespace

PyType_Spec view_spec = {"walle.engine_ext._core.EventView", sizeof(Object<View>), 0, kTypeFlags, view_slots};

}  // namespace walle::columns
