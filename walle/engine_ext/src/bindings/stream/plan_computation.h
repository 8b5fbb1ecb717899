// Computation of a plan for the events of a visit.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "bindings/stream/plan_columns.h"
#include "bindings/stream/plan_results.h"
#include "bindings/stream/rounded_float.h"

namespace walle::columns {

// Outcome of a part of a template: nothing was written, a value that is false in Python, or another one.
enum class Outcome : std::uint8_t { missing, empty, full };

// `Results` is ObjectResults or PackedResults. No Python code runs but in the keys of the given values.
template <typename Results>
class Computation {
 public:
  // All arguments must outlive it. `given` is a dict.
  Computation(const View& view, const Plan& plan, PyObject* given, Results& results)
      : view_(view), plan_(plan), given_(given), results_(results), selections_(scratch_.take<Selected>(plan.selections.size())) {
    enter(0);
  }

  Outcome compute(const Node& node) {
    const auto before = results_.mark();
    Outcome outcome = evaluate(node);
    if (outcome == Outcome::empty && node.omits_empty) {
      results_.undo(before);
      outcome = Outcome::missing;
    }
    if (outcome == Outcome::missing && !node.otherwise.empty()) return compute(node.otherwise.front());
    return outcome;
  }

 private:
  struct Selected {
    bool is_selected = false;
    std::span<const std::uint32_t> rows;
    std::optional<PlanColumns> columns;
  };

  static Outcome filled(bool is_full) noexcept { return is_full ? Outcome::full : Outcome::empty; }

  static bool is_full(const Value& value) noexcept {
    switch (value.kind) {
      case Kind::boolean:
      case Kind::integer: return value.integer != 0;
      case Kind::large: return true;
      case Kind::real: return value.real != 0;
      case Kind::text:
      case Kind::binary:
      case Kind::list:
      case Kind::map: return value.length != 0;
      default: return false;
    }
  }

  // Makes the events of a selection those that steps read; their rows are selected once.
  void enter(std::uint32_t number) {
    Selected& selected = selections_[number];
    const Selection& selection = plan_.selections[number];
    if (!selected.is_selected) {
      selected.rows = rows_of(selection);
      selected.is_selected = true;
    }
    rows_ = selected.rows;
    number_ = number;
    columns_ = selected.columns.has_value() ? &*selected.columns : nullptr;
  }

  std::span<const std::uint32_t> rows_of(const Selection& selection) {
    if (selection.key == Py_None) return view_.rows;
    std::string_view id;
    if (!read_text(selection.key, "event_id", id)) throw PythonError{};
    const EventBatch& events = *view_.batch->events;
    const auto number = events.find_id(id);
    if (!number.has_value()) return {};
    const std::span<std::uint32_t> rows = scratch_.take<std::uint32_t>(view_.rows.size());
    std::size_t count = 0;
    for (const std::uint32_t row : view_.rows) {  // no branch: it would be mispredicted
      rows[count] = row;
      count += events.event_id(row) == *number ? 1 : 0;
    }
    return rows.first(count);
  }

  PlanColumns& columns() {
    if (columns_ == nullptr) columns_ = &selections_[number_].columns.emplace(view_, plan_.selections[number_], rows_, scratch_);
    return *columns_;
  }

  Outcome evaluate(const Node& node) {
    switch (node.kind) {
      case Node::Kind::dict: return dict(node);
      case Node::Kind::list: return list(node);
      case Node::Kind::aggregation: return aggregation(node);
      case Node::Kind::special: return special(node);
      case Node::Kind::selection: return selection(node);
      case Node::Kind::constant: results_.constant(node); return truth(node.object);
      default: return given(node);
    }
  }

  // Leaves out what is missing.
  Outcome dict(const Node& node) {
    const auto start = results_.mark();
    results_.open(node.children.size());
    std::size_t pairs = 0;
    for (const Node& child : node.children) {
      const auto before = results_.mark();
      results_.key(child.key, child.packed_key);
      if (compute(child) != Outcome::missing) {
        ++pairs;
      } else if (child.is_required) {
        results_.undo(start);
        return Outcome::missing;
      } else {
        results_.undo(before);
      }
    }
    results_.close_map(start, node.children.size(), pairs);
    return filled(pairs != 0);
  }

  // None stands in place of what is missing.
  Outcome list(const Node& node) {
    const auto start = results_.mark();
    results_.open(node.children.size());
    for (const Node& child : node.children) {
      if (compute(child) != Outcome::missing) continue;
      if (child.is_required) {
        results_.undo(start);
        return Outcome::missing;
      }
      results_.value({});
    }
    results_.close_list(start, node.children.size(), node.children.size());
    return filled(!node.children.empty());
  }

  Outcome selection(const Node& node) {
    const std::uint32_t outer = number_;
    enter(node.selection);
    const Outcome outcome = rows_.size() < node.min_events ? Outcome::missing : compute(node.children.front());
    enter(outer);
    return outcome;
  }

  static Outcome truth(PyObject* object) noexcept {
    if (object == Py_None || object == Py_False) return Outcome::empty;
    if (PyFloat_CheckExact(object)) return filled(PyFloat_AS_DOUBLE(object) != 0);
    if (PyLong_CheckExact(object)) return filled(PyObject_IsTrue(object) == 1);
    if (PyDict_CheckExact(object)) return filled(PyDict_GET_SIZE(object) != 0);
    if (PyUnicode_CheckExact(object)) return filled(PyUnicode_GET_LENGTH(object) != 0);
    if (PyList_CheckExact(object) || PyTuple_CheckExact(object) || PyBytes_CheckExact(object))
      return filled(Py_SIZE(object) != 0);
    return Outcome::full;
  }

  Outcome given(const Node& node) {
    PyObject* found = PyDict_GetItemWithError(given_, node.object);
    if (found == nullptr && PyErr_Occurred() != nullptr) throw PythonError{};
    if (found == nullptr) return Outcome::missing;
    const Owned held(Py_NewRef(found));
    results_.object(found);
    return truth(found);
  }

  Outcome put(const Node& node, Value value) {
    if (value.kind == Kind::real) {
      value.real = rounded(value.real, node.digits);
      if (node.is_whole && std::fabs(value.real) < 0x1p63) value = stream::integer_value(static_cast<std::int64_t>(value.real));
    }
    if (node.least.is_number() && value.is_number() && stream::compare_numbers(value, node.least) == -1) value = node.least;
    results_.value(value);
    return filled(is_full(value));
  }
  Outcome put_real(const Node& node, double number) {
    Value value;
    value.kind = Kind::real;
    value.real = number;
    return put(node, value);
  }
  Outcome put_count(const Node& node, std::size_t count) {
    return put(node, stream::integer_value(static_cast<std::int64_t>(count)));
  }
  Outcome put_sum(const Node& node, const stream::Total& total) {
    if (total.is_real) return put_real(node, total.as_real());
    if (total.whole >= INT64_MIN && total.whole <= INT64_MAX)
      return put(node, stream::integer_value(static_cast<std::int64_t>(total.whole)));
    if (total.whole > INT64_MAX && total.whole <= static_cast<__int128>(UINT64_MAX)) {
      Value value;
      value.kind = Kind::large;
      value.large = static_cast<std::uint64_t>(total.whole);
      return put(node, value);
    }
    results_.whole(total.whole);
    return Outcome::full;
  }

  Outcome aggregation(const Node& node) {
    if (node.reading < 0) return put_count(node, rows_.size());
    const std::span<const Value> values = columns().values(node.reading);
    switch (node.function) {
      case Function::count: return put_count(node, stream::count_values(values));
      case Function::sum: return put_sum(node, stream::sum(values));
      case Function::mean: {
        const stream::Total total = stream::sum(values);
        return total.count == 0 ? put(node, {}) : put_real(node, total.mean());
      }
      case Function::min:
      case Function::max: return put(node, stream::extreme(values, node.function == Function::max));
      case Function::first: return put(node, stream::first_value(values));
      case Function::last: return put(node, stream::last_value(values));
      default: break;
    }
    if (rows_.empty() && node.function == Function::distinct) return items(0, [](std::size_t) {});
    if (rows_.empty()) return put(node, {});
    Groups group{view_.batch, stream::one_group({view_.batch->events, Rows(rows_.begin(), rows_.end())})};
    const stream::Vector<Value> copy(values.begin(), values.end());
    const Owned found(aggregate(group, node.function, columns().reading(node.reading).name, copy));
    if (found.get() == nullptr) throw PythonError{};
    PyObject* object = PyList_GET_ITEM(found.get(), 0);
    if (PyFloat_CheckExact(object)) return put_real(node, PyFloat_AS_DOUBLE(object));
    if (int overflow = 0; PyLong_CheckExact(object)) {
      const std::int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
      if (overflow == 0) return put(node, stream::integer_value(number));
    }
    results_.object(object);
    return truth(object);
  }

  std::span<const double> numbers(const Node& node) {
    const std::span<const Value> all = columns().values(node.reading);
    const std::span<double> found = scratch_.take<double>(all.size() + 1);
    std::size_t count = 0;
    if (node.has_start) found[count++] = node.start;
    for (const Value& value : all)
      if (value.is_number()) found[count++] = real_of(value);
    return found.first(count);
  }

  // The field of the event at this index.
  Outcome item(const Node& node, std::size_t index) {
    if (columns().reading(node.reading).is_text) {
      const auto texts = columns().texts(node.reading);
      if (index >= texts.size() || texts[index].empty()) return Outcome::missing;
      results_.text(texts[index]);
      return Outcome::full;
    }
    const std::span<const Value> all = columns().values(node.reading);
    return index >= all.size() || all[index].kind == Kind::missing ? Outcome::missing : put(node, all[index]);
  }

  Outcome changes(const Node& node) {
    const std::span<const double> found = numbers(node);
    if (node.special == Special::mean_step)
      return put_real(node, found.size() < 2 ? 0.0 : (found.back() - found.front()) / static_cast<double>(found.size() - 1));
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
    return node.special == Special::turns ? put_count(node, turns) : put_sum(node, total);
  }

  Outcome spread(const Node& node) {
    const std::span<const Value> values = columns().values(node.reading);
    stream::Vector<Value> found(values.begin(), values.end());
    const Reading& read = columns().reading(node.reading);
    if (read.source != Reading::Source::gap || read.is_number)  // gaps are numbers, but those above a limit are not read
      keep_numbers(found, nullptr, std::numeric_limits<double>::infinity());
    if (found.empty()) return put(node, {});
    const stream::Spread spread = stream::spread_of(found);
    static constexpr std::string_view kPackedKeys[] = {"\xa4mean", "\xa3std", "\xa9quartiles", "\xa3max"};
    const auto start = results_.mark();
    results_.open(std::size(kPackedKeys));
    for (std::size_t part = 0; part < std::size(kPackedKeys); ++part) {
      results_.key(plan_.spread_keys[part], kPackedKeys[part]);
      if (part < 2) {
        Value number;  // put_real has bounds: those of the mean alone would contradict the quartiles
        number.kind = Kind::real;
        number.real = rounded(part == 0 ? spread.total.mean() : spread.deviation, node.digits);
        results_.value(number);
      } else if (part == 3) {
        results_.value(spread.quartiles[3]);
      } else {
        const auto before = results_.mark();
        results_.open(3);
        for (std::size_t i = 0; i < 3; ++i) results_.value(spread.quartiles[i]);
        results_.close_list(before, 3, 3);
      }
    }
    results_.close_map(start, std::size(kPackedKeys), std::size(kPackedKeys));
    return Outcome::full;
  }

  // A list of the items that `write` writes.
  template <typename Write>
  Outcome items(std::size_t count, Write write) {
    const auto start = results_.mark();
    results_.open(count);
    for (std::size_t i = 0; i < count; ++i) write(i);
    results_.close_list(start, count, count);
    return filled(count != 0);
  }

  Outcome most_common(const Node& node) {
    const auto distinct = columns().distinct(node.reading);
    const std::span<PlanColumns::Distinct> order = scratch_.take<PlanColumns::Distinct>(distinct.size());
    std::copy(distinct.begin(), distinct.end(), order.begin());
    const auto is_before = [](const auto& a, const auto& b) { return a.count > b.count; };
    if (!std::is_sorted(order.begin(), order.end(), is_before)) std::stable_sort(order.begin(), order.end(), is_before);
    const auto texts = columns().texts(node.reading);
    const std::size_t count = std::min(order.size(), node.items);
    const auto start = results_.mark();
    results_.open(count);
    for (std::size_t i = 0; i < count; ++i) {
      results_.text(texts[order[i].first]);
      results_.value(stream::integer_value(order[i].count));
    }
    results_.close_map(start, count, count);
    return filled(count != 0);
  }

  // Missing where none of the texts occurs.
  Outcome tally(const Node& node) {
    const auto texts = columns().texts(node.reading);
    const auto distinct = columns().distinct(node.reading);
    const auto start = results_.mark();
    results_.open(node.children.size());
    bool is_found = false;
    for (const Node& child : node.children) {
      std::string_view sought;
      if (!read_text(child.key, "a text", sought)) throw PythonError{};
      const auto found =
          std::find_if(distinct.begin(), distinct.end(), [&](const auto& one) { return texts[one.first] == sought; });
      is_found |= found != distinct.end();
      results_.key(child.key, child.packed_key);
      results_.value(stream::integer_value(found == distinct.end() ? 0 : found->count));
    }
    results_.close_map(start, node.children.size(), node.children.size());
    if (is_found) return Outcome::full;
    results_.undo(start);
    return Outcome::missing;
  }

  Outcome column(const Node& node) {
    const std::span<const Value> all = columns().values(node.reading);
    const std::size_t count = std::min(all.size(), node.items);
    if (!columns().reading(node.reading).is_text) return items(count, [&](std::size_t i) { put(node, all[i]); });
    const auto texts = columns().texts(node.reading);
    return items(count, [&](std::size_t i) { results_.text(texts[i]); });
  }

  Outcome records(const Node& node) {
    return items(std::min(rows_.size(), node.items), [&](std::size_t i) {
      const auto start = results_.mark();
      results_.open(node.children.size());
      std::size_t pairs = 0;
      for (const Node& field : node.children) {
        const auto before = results_.mark();
        results_.key(field.key, field.packed_key);
        if (item(field, i) != Outcome::missing)
          ++pairs;
        else
          results_.undo(before);
      }
      results_.close_map(start, node.children.size(), pairs);
    });
  }

  Outcome special(const Node& node) {
    switch (node.special) {
      case Special::spread: return spread(node);
      case Special::column: return column(node);
      case Special::of_first: return item(node, 0);
      case Special::of_last: return item(node, columns().values(node.reading).size() - 1);
      case Special::distinct:
      case Special::distinct_count:
      case Special::first_seen: {
        const auto distinct = columns().distinct(node.reading);
        if (node.special == Special::distinct_count) return put_count(node, distinct.size());
        const auto texts = columns().texts(node.reading);
        return items(std::min(distinct.size(), node.items), [&](std::size_t i) {
          if (node.special == Special::distinct)
            results_.text(texts[distinct[i].first]);
          else
            results_.value(stream::integer_value(columns().since_ms(distinct[i].first)));
        });
      }
      case Special::most_common: return most_common(node);
      case Special::records: return records(node);
      case Special::tally: return tally(node);
      default: return changes(node);
    }
  }

  const View& view_;
  const Plan& plan_;
  PyObject* given_;
  Results& results_;
  stream::Scratch scratch_;
  std::span<Selected> selections_;
  std::span<const std::uint32_t> rows_;  // rows of the present selection; the two below are of it too
  std::uint32_t number_ = 0;
  PlanColumns* columns_ = nullptr;  // null: not read yet
};

}  // namespace walle::columns
