// Task code passes templates, and is hostile: only exact built-in types are read, so that no Python code runs while a template is
// compiled or computed; steps and depth are bounded; the memory of a plan is counted.
#include "bindings/stream/event_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

namespace walle::columns {

namespace {

enum class Special : std::uint8_t {
  spread,
  column,
  of_first,
  of_last,
  rise,
  fall,
  turns,
  mean_step,
  distinct,
  distinct_count,
  first_seen,
  most_common,
  records
};
constexpr std::string_view kSpecials[] = {"spread",     "column",      "of_first",  "of_last",  "rise",
                                          "fall",       "turns",       "mean_step", "distinct", "distinct_count",
                                          "first_seen", "most_common", "records"};
constexpr std::size_t kMaxSteps = 256;
constexpr int kMaxTemplateDepth = 8;
constexpr double kPowers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
constexpr std::int64_t kMaxDigits = std::size(kPowers) - 1;

// --- compilation ------------------------------------------------------------------------------

class Compiler {
 public:
  explicit Compiler(Plan& plan) : plan_(plan) {}

  void selections(PyObject* given) {
    if (!PyDict_CheckExact(given) || PyDict_GET_SIZE(given) == 0)
      fail("must be a dict of event ids, or None, and dicts of steps");
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *steps = nullptr;
    while (PyDict_Next(given, &at, &key, &steps)) {
      if (key != Py_None) (void)text(key, "an event id, unless it is None,");
      if (!PyDict_CheckExact(steps)) fail("has a selection that is not a dict of steps");
      count();
      Selection& selection = plan_.selections.emplace_back();
      selection.key = keep(key);
      selection_ = &selection;
      node(steps, selection.root, kMaxTemplateDepth);
    }
  }

 private:
  struct Options {
    PyObject *fallback = nullptr, *limit = nullptr, *max_chars = nullptr, *items = nullptr, *digits = nullptr, *start = nullptr;
  };

  [[noreturn]] static void fail(const std::string& what) { throw EventFault{"plan", what}; }

  PyObject* keep(PyObject* object) {
    plan_.kept.push_back(object);
    return Py_NewRef(object);
  }

  void count() {
    if (++steps_ > kMaxSteps) fail("has more than 256 steps");
  }

  static std::string_view text(PyObject* object, const char* what) {
    std::string_view text;
    if (object != nullptr && PyUnicode_CheckExact(object) && read_text(object, what, text)) return text;
    PyErr_Clear();
    fail(std::string(what) + " must be str");
  }

  // Reads a step or a container of steps.
  void node(PyObject* given, Node& made, int depth) {
    if (depth == 0) fail("is nested deeper than 8 levels");
    if (PyDict_CheckExact(given)) {
      Py_ssize_t at = 0;
      PyObject *key = nullptr, *child = nullptr;
      made.children.reserve(std::min<std::size_t>(static_cast<std::size_t>(PyDict_GET_SIZE(given)), kMaxSteps));
      while (PyDict_Next(given, &at, &key, &child)) {
        (void)text(key, "the name of a step");
        count();
        made.children.emplace_back().key = keep(key);
        node(child, made.children.back(), depth - 1);
      }
    } else if (PyList_CheckExact(given)) {
      made.kind = Node::Kind::list;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); ++i) {
        count();
        node(PyList_GET_ITEM(given, i), made.children.emplace_back(), depth - 1);
      }
    } else if (PyUnicode_CheckExact(given)) {
      if (text(given, "a step") != "count") fail("has a step without a field that is not count; write (field, function)");
      made.kind = Node::Kind::aggregation;
      made.function = Function::count;
    } else {
      step(given, made);
    }
  }

  void step(PyObject* given, Node& made) {
    const Py_ssize_t size = PyTuple_CheckExact(given) ? PyTuple_GET_SIZE(given) : 0;
    if (size != 2 && size != 3) fail("has a step that is not (field, function) or (field, function, options)");
    PyObject* field = PyTuple_GET_ITEM(given, 0);
    const std::string_view name = text(PyTuple_GET_ITEM(given, 1), "a function");
    const Options options = size == 3 ? options_of(PyTuple_GET_ITEM(given, 2)) : Options{};
    const bool is_text = options.max_chars != nullptr;
    made.digits = options.digits == nullptr ? -1 : static_cast<std::int32_t>(whole(options.digits, "digits", kMaxDigits));
    if (options.items != nullptr) made.items = static_cast<std::size_t>(whole(options.items, "items", INT32_MAX));
    if (options.start != nullptr) {
      made.has_start = true;
      made.start = real(options.start, "start");
    }
    const auto* special = std::find(std::begin(kSpecials), std::end(kSpecials), name);
    if (special != std::end(kSpecials) && (name != "distinct" || is_text)) {
      made.kind = Node::Kind::special;
      made.special = static_cast<std::uint8_t>(special - std::begin(kSpecials));
      const auto function = static_cast<Special>(made.special);
      if (function == Special::records) return records(field, options, made);
      if (!is_text &&
          (function == Special::distinct_count || function == Special::first_seen || function == Special::most_common))
        fail(std::string(name) + " is of texts: it needs the option max_chars");
      made.reading = reading(text(field, "a field"), options);
      return;
    }
    made.kind = Node::Kind::aggregation;
    if (!find_function(name, made.function)) fail("has the unknown function '" + std::string(name.substr(0, 64)) + "'");
    if (is_text) fail(std::string(name) + " does not take max_chars");
    made.reading = reading(text(field, "a field"), options);
    const Reading& read = selection_->readings[static_cast<std::size_t>(made.reading)];
    if (made.function == Function::distinct && (read.is_number || read.source != Reading::Source::path))
      fail("distinct is of a field without default and limit");
  }

  // Records of a dict {name: field}.
  void records(PyObject* fields, const Options& options, Node& made) {
    if (!PyDict_CheckExact(fields)) fail("records are of a dict {name: field}");
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *field = nullptr;
    while (PyDict_Next(fields, &at, &key, &field)) {
      (void)text(key, "the name of a field");
      count();
      const std::string_view name = text(field, "a field");
      const bool is_time = name == "ts_ms" || name == "since_ms";
      if (name == "gap_ms") fail("gap_ms is not a field of a record");
      const std::int32_t read = reading(name, is_time ? Options{} : options);
      Node& child = made.children.emplace_back();
      child.key = keep(key);
      child.reading = read;
    }
  }

  Options options_of(PyObject* given) {
    if (!PyDict_CheckExact(given)) fail("has options that are not a dict");
    Options options;
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(given, &at, &key, &value)) {
      const std::string_view name = text(key, "an option");
      PyObject** place = name == "default"     ? &options.fallback
                         : name == "limit"     ? &options.limit
                         : name == "max_chars" ? &options.max_chars
                         : name == "items"     ? &options.items
                         : name == "digits"    ? &options.digits
                         : name == "start"     ? &options.start
                                               : nullptr;
      if (place == nullptr) fail("has an unknown option; use default, limit, max_chars, items, digits or start");
      *place = value;
    }
    if (options.max_chars != nullptr && (options.fallback != nullptr || options.limit != nullptr))
      fail("reads a field as text (max_chars) and as a number (default, limit)");
    return options;
  }

  static double real(PyObject* given, const char* what) {
    const double number = PyFloat_CheckExact(given) || PyLong_CheckExact(given) ? PyFloat_AsDouble(given) : NAN;
    if (PyErr_Occurred() != nullptr)
      PyErr_Clear();
    else if (!std::isnan(number))
      return number;
    fail(std::string(what) + " must be a number");
  }

  static std::int64_t whole(PyObject* given, const char* what, std::int64_t most) {
    int overflow = 0;
    const std::int64_t number = PyLong_CheckExact(given) ? PyLong_AsLongLongAndOverflow(given, &overflow) : -1;
    if (overflow != 0 || number < 0 || number > most)
      fail(std::string(what) + " must be an int from 0 to " + std::to_string(most));
    return number;
  }

  // Returns the number of the reading, which equal steps share.
  std::int32_t reading(std::string_view name, const Options& options) {
    Reading made;
    made.name = name;
    if (name == "gap_ms")
      made.source = Reading::Source::gap;
    else if (name == "since_ms")
      made.source = Reading::Source::since;
    else
      made.path = FieldPath(name);
    made.is_number = options.fallback != nullptr || options.limit != nullptr;
    made.has_fallback = options.fallback != nullptr;
    made.fallback = made.has_fallback ? real(options.fallback, "default") : 0;
    made.limit = options.limit != nullptr ? real(options.limit, "limit") : std::numeric_limits<double>::infinity();
    made.is_text = options.max_chars != nullptr;
    made.max_chars = made.is_text ? static_cast<Py_ssize_t>(whole(options.max_chars, "max_chars", INT32_MAX)) : 0;
    if (made.is_text && made.source == Reading::Source::gap) fail("gap_ms is not read as text");
    stream::Vector<Reading>& readings = selection_->readings;
    for (std::size_t i = 0; i < readings.size(); ++i) {
      const Reading& one = readings[i];
      if (one.name == made.name && one.is_number == made.is_number && one.has_fallback == made.has_fallback &&
          one.fallback == made.fallback && one.limit == made.limit && one.is_text == made.is_text &&
          one.max_chars == made.max_chars && std::signbit(one.fallback) == std::signbit(made.fallback))
        return static_cast<std::int32_t>(i);
    }
    readings.push_back(std::move(made));
    return static_cast<std::int32_t>(readings.size() - 1);
  }

  Plan& plan_;
  Selection* selection_ = nullptr;
  std::size_t steps_ = 0;
};

// --- computation ------------------------------------------------------------------------------

// Returns the float as round(number, digits) rounds it, to the nearest decimal.
PyObject* rounded(double number, std::int32_t digits) {
  if (digits < 0 || !std::isfinite(number)) return PyFloat_FromDouble(number);
  const double scaled = number * kPowers[digits];
  if (std::fabs(scaled) < 0x1p40) {  // beyond a tie by more than the error of the product, the quotient is the nearest double
    const double whole = std::nearbyint(scaled);
    if (std::fabs(std::fabs(scaled - whole) - 0.5) > 0x1p-10) return PyFloat_FromDouble(whole / kPowers[digits]);
  }
  char* text = PyOS_double_to_string(number, 'f', digits, 0, nullptr);
  if (text == nullptr) return nullptr;
  const double nearest = PyOS_string_to_double(text, nullptr, nullptr);
  PyMem_Free(text);
  return nearest == -1 && PyErr_Occurred() != nullptr ? nullptr : PyFloat_FromDouble(nearest);
}

PyObject* rounded(PyObject* object, std::int32_t digits) {
  if (object == nullptr || digits < 0 || !PyFloat_CheckExact(object)) return object;
  PyObject* made = rounded(PyFloat_AS_DOUBLE(object), digits);
  Py_DECREF(object);
  return made;
}

// The values of a reading, and what several steps derive from them.
struct Column {
  bool is_read = false, has_distinct = false;
  stream::Vector<Value> values;
  PyObject* texts = nullptr;  // a list
  stream::Vector<std::uint32_t> firsts,
      counts;  // of each distinct text but "": the index of its first event, how often it occurs
};

class Computation {
 public:
  Computation(const View& view, const Selection& selection, Rows rows) : selection_(selection) {
    const std::size_t count = rows.size();
    first_ms_ = view.batch->events->ts_ms(view.rows[0]);
    groups_.batch = view.batch;
    groups_.groups.batch = view.batch->events;
    groups_.groups.rows = std::move(rows);
    groups_.groups.groups.assign(count, 0);
    groups_.groups.count = 1;
    columns_.resize(selection.readings.size());
  }
  ~Computation() {
    for (Column& column : columns_) Py_XDECREF(column.texts);
  }
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;

  PyObject* compute(const Node& node) {
    switch (node.kind) {
      case Node::Kind::dict: return dict(node);
      case Node::Kind::list:
        return make_list(node.children.size(), [&](std::size_t i) {
          PyObject* item = compute(node.children[i]);
          return item == nullptr && PyErr_Occurred() == nullptr ? Py_NewRef(Py_None) : item;
        });
      case Node::Kind::aggregation: {
        static const stream::Vector<Value> kNoValues;
        const bool has_field = node.reading >= 0;
        PyObject* list = aggregate(groups_, node.function, has_field ? std::string_view(reading(node).name) : "",
                                   has_field ? values(node.reading) : kNoValues);
        PyObject* result = list == nullptr ? nullptr : Py_NewRef(PyList_GET_ITEM(list, 0));
        Py_XDECREF(list);
        return rounded(result, node.digits);
      }
      default: return special(node);
    }
  }

 private:
  const Rows& rows() const noexcept { return groups_.groups.rows; }
  const EventBatch& events() const noexcept { return *groups_.batch->events; }
  const Reading& reading(const Node& node) const noexcept { return selection_.readings[static_cast<std::size_t>(node.reading)]; }

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

  const stream::Vector<Value>& values(std::int32_t number) {
    Column& column = columns_[static_cast<std::size_t>(number)];
    if (column.is_read) return column.values;
    const Reading& reading = selection_.readings[static_cast<std::size_t>(number)];
    if (reading.source == Reading::Source::gap) {
      column.values = gaps_of(events(), rows());
    } else if (reading.source == Reading::Source::since) {
      column.values.resize(rows().size());
      for (std::size_t i = 0; i < rows().size(); ++i)
        column.values[i] = stream::integer_value(events().ts_ms(rows()[i]) - first_ms_);
    } else {
      column.values = events().fields(rows(), reading.path, reading.name);
    }
    if (reading.is_number) {
      for (Value& value : column.values) {
        const bool is_kept = is_within(value, reading.limit);
        Value number_of_value;
        if (is_kept || reading.has_fallback) {
          number_of_value.kind = Kind::real;
          number_of_value.real = is_kept ? real_of(value) : reading.fallback;
        }
        value = number_of_value;
      }
    }
    column.is_read = true;
    return column.values;
  }

  // Returns a borrowed list, or a null pointer.
  PyObject* texts(std::int32_t number) {
    Column& column = columns_[static_cast<std::size_t>(number)];
    if (column.texts != nullptr) return column.texts;
    const stream::Vector<Value>& found = values(number);
    const Py_ssize_t max_chars = selection_.readings[static_cast<std::size_t>(number)].max_chars;
    column.texts =
        make_list(found.size(), [&](std::size_t i) { return text_object(events(), found[i], max_chars, stream::kMaxTimeMs); });
    return column.texts;
  }

  // Returns a null pointer with a Python error.
  const Column* distinct(std::int32_t number) {
    Column& column = columns_[static_cast<std::size_t>(number)];
    if (column.has_distinct) return &column;
    if (has_few_plain_texts(number)) {
      const stream::Vector<Value>& found = values(number);
      for (std::uint32_t i = 0; i < found.size(); ++i) {
        if (found[i].length == 0) continue;
        const std::string_view text = events().text(found[i]);
        std::size_t place = 0;
        while (place < column.firsts.size() && events().text(found[column.firsts[place]]) != text) ++place;
        if (place == column.firsts.size()) {
          column.firsts.push_back(i);
          column.counts.push_back(0);
        }
        ++column.counts[place];
      }
      column.has_distinct = true;
      return &column;
    }
    PyObject* list = texts(number);
    const Owned places(list == nullptr ? nullptr : PyDict_New());
    if (places.get() == nullptr) return nullptr;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      PyObject* text = PyList_GET_ITEM(list, i);
      if (PyUnicode_GET_LENGTH(text) == 0) continue;
      if (PyObject* place = PyDict_GetItemWithError(places.get(), text); place != nullptr) {
        ++column.counts[PyLong_AsSize_t(place)];
        continue;
      }
      const Owned place(PyErr_Occurred() != nullptr ? nullptr : PyLong_FromSize_t(column.firsts.size()));
      if (place.get() == nullptr || PyDict_SetItem(places.get(), text, place.get()) < 0) return nullptr;
      column.firsts.push_back(static_cast<std::uint32_t>(i));
      column.counts.push_back(1);
    }
    column.has_distinct = true;
    return &column;
  }

  // Returns whether all values are texts that are not cut, or missing; few enough for a search without a table.
  bool has_few_plain_texts(std::int32_t number) {
    const stream::Vector<Value>& found = values(number);
    const auto most = static_cast<std::size_t>(selection_.readings[static_cast<std::size_t>(number)].max_chars);
    return found.size() <= 64 && std::all_of(found.begin(), found.end(), [&](const Value& value) {
             return value.kind == Kind::text ? value.length <= most : value.kind == Kind::missing;
           });
  }

  // Returns a text that `distinct` found.
  PyObject* text_of(std::int32_t number, std::uint32_t index) {
    const Column& column = columns_[static_cast<std::size_t>(number)];
    if (column.texts != nullptr) return Py_NewRef(PyList_GET_ITEM(column.texts, index));
    return groups_.batch->object(column.values[index]);
  }

  stream::Vector<double> numbers(const Node& node) {
    stream::Vector<double> found;
    const stream::Vector<Value>& all = values(node.reading);
    found.reserve(all.size() + 1);
    if (node.has_start) found.push_back(node.start);
    for (const Value& value : all)
      if (value.is_number()) found.push_back(real_of(value));
    return found;
  }

  // Returns the field of the event at this index; a null pointer without a Python error where it is missing.
  PyObject* item(const Node& node, std::size_t index) {
    const Reading& read = reading(node);
    if (read.is_text) {
      PyObject* list = texts(node.reading);
      if (list == nullptr || PyUnicode_GET_LENGTH(PyList_GET_ITEM(list, index)) == 0) return nullptr;
      return Py_NewRef(PyList_GET_ITEM(list, index));
    }
    const stream::Vector<Value>& all = values(node.reading);
    return index >= all.size() || all[index].kind == Kind::missing ? nullptr : groups_.batch->object(all[index]);
  }

  PyObject* changes(const Node& node, Special function) {
    const stream::Vector<double> found = numbers(node);
    if (function == Special::mean_step) {
      const std::size_t steps = found.size() < 2 ? 1 : found.size() - 1;
      return rounded(found.size() < 2 ? 0.0 : (found.back() - found.front()) / static_cast<double>(steps), node.digits);
    }
    stream::Total total;
    std::size_t turns = 0;
    for (std::size_t i = 1; i < found.size(); ++i) {
      Value change;
      change.kind = Kind::real;
      change.real = found[i] - found[i - 1];
      if (function == Special::rise ? change.real > 0 : change.real < 0) {
        if (function == Special::fall) change.real = -change.real;
        total.add(change);
      }
      if (i > 1 && (found[i - 1] - found[i - 2]) * (found[i] - found[i - 1]) < 0) ++turns;
    }
    return function == Special::turns ? PyLong_FromSize_t(turns) : rounded(object_of_total(total), node.digits);
  }

  PyObject* spread(const Node& node) {
    stream::Vector<Value> found = values(node.reading);
    if (reading(node).source != Reading::Source::gap) keep_numbers(found, nullptr, std::numeric_limits<double>::infinity());
    if (found.empty()) Py_RETURN_NONE;
    const stream::Spread spread = stream::spread_of(found);
    PyObject *mean = rounded(mean_of(spread.total), node.digits), *deviation = rounded(spread.deviation, node.digits),
             *objects[4];
    for (int i = 0; i < 4; ++i) objects[i] = groups_.batch->object(spread.quartiles[i]);
    return Py_BuildValue("{sNsNs[NNN]sN}", "mean", mean, "std", deviation, "quartiles", objects[0], objects[1], objects[2], "max",
                         objects[3]);
  }

  PyObject* most_common(const Node& node) {
    const Column* column = distinct(node.reading);
    if (column == nullptr) return nullptr;
    stream::Vector<std::uint32_t> order(column->firsts.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return column->counts[a] > column->counts[b]; });
    Owned made(PyDict_New());
    for (std::size_t i = 0; made.get() != nullptr && i < std::min(order.size(), node.items); ++i) {
      const Owned times(PyLong_FromUnsignedLong(column->counts[order[i]])), text(text_of(node.reading, column->firsts[order[i]]));
      if (times.get() == nullptr || text.get() == nullptr || PyDict_SetItem(made.get(), text.get(), times.get()) < 0)
        return nullptr;
    }
    return made.release();
  }

  PyObject* special(const Node& node) {
    const auto function = static_cast<Special>(node.special);
    switch (function) {
      case Special::spread: return spread(node);
      case Special::column: {
        const stream::Vector<Value>& all = values(node.reading);
        PyObject* list = reading(node).is_text ? texts(node.reading) : nullptr;
        if (reading(node).is_text && list == nullptr) return nullptr;
        return make_list(std::min(all.size(), node.items), [&](std::size_t i) {
          return list != nullptr ? Py_NewRef(PyList_GET_ITEM(list, i)) : rounded(groups_.batch->object(all[i]), node.digits);
        });
      }
      case Special::of_first: return rounded(item(node, 0), node.digits);
      case Special::of_last: return rounded(item(node, values(node.reading).size() - 1), node.digits);
      case Special::distinct:
      case Special::distinct_count:
      case Special::first_seen: {
        const Column* column = distinct(node.reading);
        if (column == nullptr) return nullptr;
        if (function == Special::distinct_count) return PyLong_FromSize_t(column->firsts.size());
        return make_list(std::min(column->firsts.size(), node.items), [&](std::size_t i) {
          const std::uint32_t first = column->firsts[i];
          return function == Special::distinct ? text_of(node.reading, first)
                                               : PyLong_FromLongLong(events().ts_ms(rows()[first]) - first_ms_);
        });
      }
      case Special::most_common: return most_common(node);
      case Special::records:
        return make_list(std::min(rows().size(), node.items), [&](std::size_t i) {
          Owned record(PyDict_New());
          for (const Node& field : node.children) {
            if (record.get() == nullptr) return static_cast<PyObject*>(nullptr);
            const Owned found(item(field, i));
            if (found.get() == nullptr ? PyErr_Occurred() != nullptr : PyDict_SetItem(record.get(), field.key, found.get()) < 0)
              return static_cast<PyObject*>(nullptr);
          }
          return record.release();
        });
      default: return changes(node, function);
    }
  }

  const Selection& selection_;
  Groups groups_;
  std::int64_t first_ms_ = 0;
  stream::Vector<Column> columns_;
};

}  // namespace

PyObject* new_plan(PyTypeObject* type, PyObject* selections) {
  auto plan = std::make_unique<Plan>();
  Compiler(*plan).selections(selections);
  return create(type, std::move(plan));
}

PyObject* run_plan(PyObject* object, const View& view) {
  if (Py_TYPE(object)->tp_dealloc != static_cast<destructor>(dealloc<Plan>))
    return PyErr_Format(PyExc_TypeError, "a plan is made by compile_plan, not %.200s", Py_TYPE(object)->tp_name);
  const Plan& plan = *reinterpret_cast<Object<Plan>*>(object)->state;
  const EventBatch& events = *view.batch->events;
  Owned results(PyDict_New());
  for (const Selection& selection : plan.selections) {
    if (results.get() == nullptr) return nullptr;
    Rows rows;
    if (selection.key == Py_None) {
      rows = view.rows;
    } else {
      std::string_view id;
      if (!read_text(selection.key, "event_id", id)) return nullptr;
      const auto number = events.find_id(id);
      if (!number.has_value()) continue;
      rows.reserve(view.rows.size());
      for (const std::uint32_t row : view.rows)
        if (events.event_id(row) == *number) rows.push_back(row);
    }
    if (rows.empty()) continue;
    const Owned result(Computation(view, selection, std::move(rows)).compute(selection.root));
    if (result.get() == nullptr || PyDict_SetItem(results.get(), selection.key, result.get()) < 0) return nullptr;
  }
  return results.release();
}

}  // namespace walle::columns
