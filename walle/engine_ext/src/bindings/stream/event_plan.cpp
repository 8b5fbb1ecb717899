// Computation of plans. Only exact built-in types are read and made, so that no Python code runs; the memory of a plan is
// counted.
#include "bindings/stream/event_plan.h"

#include <algorithm>
#include <limits>

#include "bindings/stream/plan_columns.h"
#include "bindings/stream/rounded_float.h"

namespace walle::columns {

namespace {

class Computation {
 public:
  Computation(const View& view, const Selection& selection, const Rows& rows, const Plan& plan)
      : columns_(view, selection, rows), view_(view), plan_(plan) {}

  // Returns the result of a step; a null pointer without a Python error where its field is missing.
  PyObject* compute(const Node& node) {
    switch (node.kind) {
      case Node::Kind::dict: return dict(node);
      case Node::Kind::list:
        return make_list(node.children.size(), [&](std::size_t i) {
          PyObject* item = compute(node.children[i]);
          return item == nullptr && PyErr_Occurred() == nullptr ? Py_NewRef(Py_None) : item;
        });
      case Node::Kind::aggregation: return rounded(aggregation(node), node.digits);
      default: return special(node);
    }
  }

 private:
  // Leaves out a step of which the field is missing.
  PyObject* dict(const Node& node) {
    Owned made(PyDict_New());
    for (const Node& child : node.children) {
      if (made.get() == nullptr) return nullptr;
      const Owned item(compute(child));
      if (item.get() == nullptr ? PyErr_Occurred() != nullptr : PyDict_SetItem(made.get(), child.key, item.get()) < 0)
        return nullptr;
    }
    return made.release();
  }

  PyObject* object(const Value& value) const { return columns_.batch().object(value); }

  PyObject* aggregation(const Node& node) {
    if (node.reading < 0) return PyLong_FromSize_t(columns_.rows().size());
    const std::span<const Value> values = columns_.values(node.reading);
    switch (node.function) {
      case Function::count: return PyLong_FromSize_t(stream::count_values(values));
      case Function::sum: return object_of_total(stream::sum(values));
      case Function::mean: return mean_of(stream::sum(values));
      case Function::min:
      case Function::max: return object(stream::extreme(values, node.function == Function::max));
      case Function::first: return object(stream::first_value(values));
      case Function::last: return object(stream::last_value(values));
      default: break;
    }
    Groups group{view_.batch, stream::one_group({view_.batch->events, columns_.rows()})};
    const stream::Vector<Value> copy(values.begin(), values.end());
    const Owned list(aggregate(group, node.function, columns_.reading(node.reading).name, copy));
    return list.get() == nullptr ? nullptr : Py_NewRef(PyList_GET_ITEM(list.get(), 0));
  }

  stream::Vector<double> numbers(const Node& node) {
    stream::Vector<double> found;
    const std::span<const Value> all = columns_.values(node.reading);
    found.reserve(all.size() + 1);
    if (node.has_start) found.push_back(node.start);
    for (const Value& value : all)
      if (value.is_number()) found.push_back(real_of(value));
    return found;
  }

  // Returns the field of the event at this index; a null pointer without a Python error where it is missing.
  PyObject* item(const Node& node, std::size_t index) {
    if (columns_.reading(node.reading).is_text) {
      PyObject* list = columns_.texts(node.reading);
      if (list == nullptr || PyUnicode_GET_LENGTH(PyList_GET_ITEM(list, index)) == 0) return nullptr;
      return Py_NewRef(PyList_GET_ITEM(list, index));
    }
    const std::span<const Value> all = columns_.values(node.reading);
    return index >= all.size() || all[index].kind == Kind::missing ? nullptr : object(all[index]);
  }

  PyObject* changes(const Node& node) {
    const stream::Vector<double> found = numbers(node);
    if (node.special == Special::mean_step) {
      const std::size_t steps = found.size() < 2 ? 1 : found.size() - 1;
      return rounded(found.size() < 2 ? 0.0 : (found.back() - found.front()) / static_cast<double>(steps), node.digits);
    }
    stream::Total total;
    std::size_t turns = 0;
    for (std::size_t i = 1; i < found.size(); ++i) {
      Value change;
      change.kind = Kind::real;
      change.real = found[i] - found[i - 1];
      if (node.special == Special::rise ? change.real > 0 : change.real < 0) {
        if (node.special == Special::fall) change.real = -change.real;
        total.add(change);
      }
      if (i > 1 && (found[i - 1] - found[i - 2]) * (found[i] - found[i - 1]) < 0) ++turns;
    }
    return node.special == Special::turns ? PyLong_FromSize_t(turns) : rounded(object_of_total(total), node.digits);
  }

  PyObject* spread(const Node& node) {
    const std::span<const Value> values = columns_.values(node.reading);
    stream::Vector<Value> found(values.begin(), values.end());
    const Reading& read = columns_.reading(node.reading);
    if (read.source != Reading::Source::gap || read.is_number)  // gaps are numbers, but those above a limit are not read
      keep_numbers(found, nullptr, std::numeric_limits<double>::infinity());
    if (found.empty()) Py_RETURN_NONE;
    const stream::Spread spread = stream::spread_of(found);
    const auto result = [&](std::size_t part) {
      switch (part) {
        case 0: return rounded(mean_of(spread.total), node.digits);
        case 1: return rounded(spread.deviation, node.digits);
        case 2: return make_list(3, [&](std::size_t i) { return object(spread.quartiles[i]); });
        default: return object(spread.quartiles[3]);
      }
    };
    Owned made(PyDict_New());
    for (std::size_t part = 0; part < std::size(plan_.spread_keys); ++part) {
      const Owned one(made.get() == nullptr ? nullptr : result(part));
      if (one.get() == nullptr || PyDict_SetItem(made.get(), plan_.spread_keys[part], one.get()) < 0) return nullptr;
    }
    return made.release();
  }

  PyObject* most_common(const Node& node) {
    const auto* distinct = columns_.distinct(node.reading);
    if (distinct == nullptr) return nullptr;
    stream::Vector<PlanColumns::Distinct> order(*distinct);
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
    Owned made(PyDict_New());
    for (std::size_t i = 0; made.get() != nullptr && i < std::min(order.size(), node.items); ++i) {
      const Owned times(PyLong_FromUnsignedLong(order[i].count)), text(columns_.text(node.reading, order[i].first));
      if (times.get() == nullptr || text.get() == nullptr || PyDict_SetItem(made.get(), text.get(), times.get()) < 0)
        return nullptr;
    }
    return made.release();
  }

  PyObject* column(const Node& node) {
    const std::span<const Value> all = columns_.values(node.reading);
    const std::size_t count = std::min(all.size(), node.items);
    if (!columns_.reading(node.reading).is_text)
      return make_list(count, [&](std::size_t i) { return rounded(object(all[i]), node.digits); });
    PyObject* texts = columns_.texts(node.reading);
    return texts == nullptr ? nullptr : PyList_GetSlice(texts, 0, static_cast<Py_ssize_t>(count));
  }

  PyObject* records(const Node& node) {
    return make_list(std::min(columns_.rows().size(), node.items), [&](std::size_t i) {
      Owned record(PyDict_New());
      for (const Node& field : node.children) {
        if (record.get() == nullptr) return static_cast<PyObject*>(nullptr);
        const Owned found(item(field, i));
        if (found.get() == nullptr ? PyErr_Occurred() != nullptr : PyDict_SetItem(record.get(), field.key, found.get()) < 0)
          return static_cast<PyObject*>(nullptr);
      }
      return record.release();
    });
  }

  PyObject* special(const Node& node) {
    switch (node.special) {
      case Special::spread: return spread(node);
      case Special::column: return column(node);
      case Special::of_first: return rounded(item(node, 0), node.digits);
      case Special::of_last: return rounded(item(node, columns_.values(node.reading).size() - 1), node.digits);
      case Special::distinct:
      case Special::distinct_count:
      case Special::first_seen: {
        const auto* distinct = columns_.distinct(node.reading);
        if (distinct == nullptr) return nullptr;
        if (node.special == Special::distinct_count) return PyLong_FromSize_t(distinct->size());
        return make_list(std::min(distinct->size(), node.items), [&](std::size_t i) {
          const std::uint32_t first = (*distinct)[i].first;
          return node.special == Special::distinct ? columns_.text(node.reading, first)
                                                   : PyLong_FromLongLong(columns_.since_ms(first));
        });
      }
      case Special::most_common: return most_common(node);
      case Special::records: return records(node);
      default: return changes(node);
    }
  }

  PlanColumns columns_;
  const View& view_;
  const Plan& plan_;
};

}  // namespace

PyObject* run_plan(PyObject* object, const View& view) {
  if (Py_TYPE(object)->tp_dealloc != static_cast<destructor>(dealloc<Plan>))
    return PyErr_Format(PyExc_TypeError, "a plan is made by compile_plan, not %.200s", Py_TYPE(object)->tp_name);
  const Plan& plan = *reinterpret_cast<Object<Plan>*>(object)->state;
  const EventBatch& events = *view.batch->events;
  Owned results(PyDict_New());
  Rows selected;
  for (const Selection& selection : plan.selections) {
    if (results.get() == nullptr) return nullptr;
    if (selection.key != Py_None) {
      std::string_view id;
      if (!read_text(selection.key, "event_id", id)) return nullptr;
      const auto number = events.find_id(id);
      if (!number.has_value()) continue;
      selected.clear();
      selected.reserve(view.rows.size());
      for (const std::uint32_t row : view.rows)
        if (events.event_id(row) == *number) selected.push_back(row);
    }
    const Rows& rows = selection.key == Py_None ? view.rows : selected;
    if (rows.empty()) continue;
    const Owned result(Computation(view, selection, rows, plan).compute(selection.root));
    if (result.get() == nullptr || PyDict_SetItem(results.get(), selection.key, result.get()) < 0) return nullptr;
  }
  return results.release();
}

}  // namespace walle::columns
