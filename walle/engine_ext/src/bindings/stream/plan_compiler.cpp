// Compiler of plans. Task code passes templates, and is hostile: only exact built-in types are read, so that no Python code runs
// while a template is compiled; steps and depth are bounded.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "bindings/stream/event_plan.h"
#include "bindings/stream/rounded_float.h"
#include "stream/packed_writer.h"

namespace walle::columns {

namespace {

constexpr std::string_view kSpecials[] = {"spread",     "column",      "of_first",  "of_last",  "rise",
                                          "fall",       "turns",       "mean_step", "distinct", "distinct_count",
                                          "first_seen", "most_common", "records",   "tally"};
constexpr std::size_t kMaxSteps = 256;
constexpr int kMaxTemplateDepth = 8;

class Compiler {
 public:
  explicit Compiler(Plan& plan) : plan_(plan) {}

  void selections(PyObject* given) {
    if (!PyDict_CheckExact(given) || PyDict_GET_SIZE(given) == 0)
      fail("must be a dict of event ids, or None, and dicts of steps");
    begin();
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *steps = nullptr;
    while (PyDict_Next(given, &at, &key, &steps)) {
      if (key != Py_None) (void)text(key, "an event id, unless it is None,");
      if (!PyDict_CheckExact(steps)) fail("has a selection that is not a dict of steps");
      count();
      Node& made = child_of(plan_.root, key);
      made.kind = Node::Kind::selection;
      made.selection = selection_of(key);
      selection_ = made.selection;
      node(steps, made.children.emplace_back(), kMaxTemplateDepth);
    }
  }

  void result(PyObject* given) {
    begin();
    node(given, plan_.root, kMaxTemplateDepth);
  }

 private:
  struct Options {
    PyObject *fallback = nullptr, *limit = nullptr, *max_chars = nullptr, *items = nullptr, *digits = nullptr, *start = nullptr;
    PyObject *omit_empty = nullptr, *required = nullptr, *otherwise = nullptr, *whole = nullptr, *least = nullptr;
    PyObject *min_events = nullptr, *texts = nullptr;
  };

  void begin() {
    static constexpr const char* kSpreadKeys[] = {"mean", "std", "quartiles", "max"};
    for (std::size_t i = 0; i < std::size(kSpreadKeys); ++i) {
      PyObject* name = PyUnicode_InternFromString(kSpreadKeys[i]);
      if (name == nullptr) throw std::bad_alloc();
      plan_.kept.push_back(name);
      plan_.spread_keys[i] = name;
    }
    (void)selection_of(Py_None);
  }

  // Returns the number of the selection of this event id, which all parts of the template share.
  std::uint32_t selection_of(PyObject* key) {
    for (std::uint32_t i = 0; i < plan_.selections.size(); ++i) {
      PyObject* other = plan_.selections[i].key;
      if (key == other || (key != Py_None && other != Py_None && PyUnicode_Compare(key, other) == 0)) return i;
    }
    plan_.selections.emplace_back().key = keep(key);
    return static_cast<std::uint32_t>(plan_.selections.size() - 1);
  }

  // Adds a child with its key, which is exact str, or None.
  Node& child_of(Node& parent, PyObject* key) {
    Node& child = parent.children.emplace_back();
    child.key = keep(key);
    if (key == Py_None) return child;
    stream::PackedWriter writer;
    writer.text(text(key, "a name"));
    child.packed_key = writer.bytes();
    return child;
  }

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
        node(child, child_of(made, key), depth - 1);
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
    } else if (given == Py_None || PyBool_Check(given) || PyLong_CheckExact(given) || PyFloat_CheckExact(given)) {
      int overflow = 0;
      if (PyLong_CheckExact(given) && (PyLong_AsLongLongAndOverflow(given, &overflow), overflow != 0))
        fail("has a constant of more than 64 bits");
      made.kind = Node::Kind::constant;
      made.object = keep(given);
    } else {
      tuple(given, made, depth);
    }
  }

  void tuple(PyObject* given, Node& made, int depth) {
    const Py_ssize_t size = PyTuple_CheckExact(given) ? PyTuple_GET_SIZE(given) : 0;
    if (size == 1) {
      (void)text(PyTuple_GET_ITEM(given, 0), "the name of a given value");
      made.kind = Node::Kind::given;
      made.object = keep(PyTuple_GET_ITEM(given, 0));
      return;
    }
    if (size != 2 && size != 3)
      fail("has a part that is not (field, function), (event id, part), either with options, or (name of a given value,)");
    const Options options = size == 3 ? options_of(PyTuple_GET_ITEM(given, 2)) : Options{};
    made.omits_empty = is_true(options.omit_empty, "omit_empty");
    made.is_required = is_true(options.required, "required");
    if (options.otherwise != nullptr) {
      count();
      node(options.otherwise, made.otherwise.emplace_back(), depth - 1);
    }
    if (PyUnicode_CheckExact(PyTuple_GET_ITEM(given, 1))) return step(given, options, made);
    if (options.fallback != nullptr || options.limit != nullptr || options.max_chars != nullptr || options.items != nullptr ||
        options.digits != nullptr || options.start != nullptr || options.whole != nullptr || options.least != nullptr ||
        options.texts != nullptr)
      fail("has a selection with options of a step; use omit_empty, otherwise, required or min_events");
    if (options.min_events != nullptr)
      made.min_events = static_cast<std::size_t>(whole(options.min_events, "min_events", INT32_MAX));
    PyObject* key = PyTuple_GET_ITEM(given, 0);
    if (key != Py_None) (void)text(key, "an event id, unless it is None,");
    count();
    made.kind = Node::Kind::selection;
    made.selection = selection_of(key);
    const std::uint32_t outer = std::exchange(selection_, made.selection);
    node(PyTuple_GET_ITEM(given, 1), made.children.emplace_back(), depth - 1);
    selection_ = outer;
  }

  void step(PyObject* given, const Options& options, Node& made) {
    if (options.min_events != nullptr) fail("has a step with min_events, which is an option of selections");
    PyObject* field = PyTuple_GET_ITEM(given, 0);
    const std::string_view name = text(PyTuple_GET_ITEM(given, 1), "a function");
    const bool is_text = options.max_chars != nullptr;
    made.digits = options.digits == nullptr ? -1 : static_cast<std::int32_t>(whole(options.digits, "digits", kMaxRoundedDigits));
    if (options.items != nullptr) made.items = static_cast<std::size_t>(whole(options.items, "items", INT32_MAX));
    if (options.start != nullptr) {
      made.has_start = true;
      made.start = real(options.start, "start");
    }
    if (options.texts != nullptr && name != "tally") fail("has a step with texts, which is an option of tally");
    made.is_whole = is_true(options.whole, "whole");
    if (options.least != nullptr) made.least = number(options.least, "least");
    const auto* special = std::find(std::begin(kSpecials), std::end(kSpecials), name);
    if (special != std::end(kSpecials) && (name != "distinct" || is_text)) {
      made.kind = Node::Kind::special;
      made.special = static_cast<Special>(special - std::begin(kSpecials));
      const Special function = made.special;
      if (function == Special::records) return records(field, options, made);
      if (!is_text && (function == Special::distinct_count || function == Special::first_seen ||
                       function == Special::most_common || function == Special::tally))
        fail(std::string(name) + " is of texts: it needs the option max_chars");
      if (function == Special::tally) tally(options.texts, made);
      made.reading = reading(text(field, "a field"), options);
      return;
    }
    made.kind = Node::Kind::aggregation;
    if (!find_function(name, made.function)) fail("has the unknown function '" + std::string(name.substr(0, 64)) + "'");
    if (is_text) fail(std::string(name) + " does not take max_chars");
    made.reading = reading(text(field, "a field"), options);
    const Reading& read = selection().readings[static_cast<std::size_t>(made.reading)];
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
      child_of(made, key).reading = read;
    }
  }

  void tally(PyObject* texts, Node& made) {
    const Py_ssize_t size = texts != nullptr && PyTuple_CheckExact(texts) ? PyTuple_GET_SIZE(texts) : 0;
    if (size == 0) fail("has a tally without the option texts, a tuple of those that are counted");
    for (Py_ssize_t i = 0; i < size; ++i) {
      count();
      PyObject* one = PyTuple_GET_ITEM(texts, i);
      (void)text(one, "a text of a tally");
      for (const Node& other : made.children)  // a dict in bytes would have the key twice
        if (PyUnicode_Compare(other.key, one) == 0) fail("has a tally with the same text twice");
      child_of(made, one);
    }
  }

  Options options_of(PyObject* given) {
    if (!PyDict_CheckExact(given)) fail("has options that are not a dict");
    Options options;
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(given, &at, &key, &value)) {
      const std::string_view name = text(key, "an option");
      PyObject** place = name == "default"      ? &options.fallback
                         : name == "limit"      ? &options.limit
                         : name == "max_chars"  ? &options.max_chars
                         : name == "items"      ? &options.items
                         : name == "digits"     ? &options.digits
                         : name == "start"      ? &options.start
                         : name == "omit_empty" ? &options.omit_empty
                         : name == "required"   ? &options.required
                         : name == "otherwise"  ? &options.otherwise
                         : name == "whole"      ? &options.whole
                         : name == "least"      ? &options.least
                         : name == "min_events" ? &options.min_events
                         : name == "texts"      ? &options.texts
                                                : nullptr;
      if (place == nullptr) fail("has the unknown option '" + std::string(name.substr(0, 64)) + "'");
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

  static Value number(PyObject* given, const char* what) {
    Value found;
    found.kind = Kind::real;
    found.real = real(given, what);
    if (!PyLong_CheckExact(given)) return found;
    int overflow = 0;
    const std::int64_t integer = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (overflow != 0) fail(std::string(what) + " is an int of more than 64 bits");
    return stream::integer_value(integer);
  }

  static bool is_true(PyObject* given, const char* what) {
    if (given != nullptr && !PyBool_Check(given)) fail(std::string(what) + " must be a bool");
    return given == Py_True;
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
    stream::Vector<Reading>& readings = selection().readings;
    for (std::size_t i = 0; i < readings.size(); ++i) {
      const Reading& one = readings[i];
      if (one.name == made.name && one.is_number == made.is_number && one.has_fallback == made.has_fallback &&
          one.fallback == made.fallback && one.limit == made.limit && one.is_text == made.is_text &&
          one.max_chars == made.max_chars && std::signbit(one.fallback) == std::signbit(made.fallback))
        return static_cast<std::int32_t>(i);
    }
    if (made.source == Reading::Source::path && made.path.source() == FieldPath::Source::contents && !made.path.keys().empty())
      made.field = static_cast<std::int32_t>(selection().fields.add(made.path));
    readings.push_back(std::move(made));
    return static_cast<std::int32_t>(readings.size() - 1);
  }

  Selection& selection() { return plan_.selections[selection_]; }

  Plan& plan_;
  std::uint32_t selection_ = 0;
  std::size_t steps_ = 0;
};

}  // namespace

PyObject* new_plan(PyTypeObject* type, PyTypeObject* encoded_type, PyObject* given, bool is_selections) {
  auto plan = std::make_unique<Plan>(encoded_type);
  Compiler compiler(*plan);
  is_selections ? compiler.selections(given) : compiler.result(given);
  return create(type, std::move(plan));
}

}  // namespace walle::columns
