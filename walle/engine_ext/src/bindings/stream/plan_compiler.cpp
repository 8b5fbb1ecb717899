// Compiler of plans. Task code passes templates, and is hostile: only exact built-in types are read, so that no Python code runs
// while a template is compiled; steps and depth are bounded.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "bindings/stream/event_plan.h"
#include "bindings/stream/rounded_float.h"

namespace walle::columns {

namespace {

constexpr std::string_view kSpecials[] = {"spread",     "column",      "of_first",  "of_last",  "rise",
                                          "fall",       "turns",       "mean_step", "distinct", "distinct_count",
                                          "first_seen", "most_common", "records"};
constexpr std::size_t kMaxSteps = 256;
constexpr int kMaxTemplateDepth = 8;

class Compiler {
 public:
  explicit Compiler(Plan& plan) : plan_(plan) {}

  void selections(PyObject* given) {
    if (!PyDict_CheckExact(given) || PyDict_GET_SIZE(given) == 0)
      fail("must be a dict of event ids, or None, and dicts of steps");
    static constexpr const char* kSpreadKeys[] = {"mean", "std", "quartiles", "max"};
    for (std::size_t i = 0; i < std::size(kSpreadKeys); ++i) {
      PyObject* name = PyUnicode_InternFromString(kSpreadKeys[i]);
      if (name == nullptr) throw std::bad_alloc();
      plan_.kept.push_back(name);
      plan_.spread_keys[i] = name;
    }
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
    made.digits = options.digits == nullptr ? -1 : static_cast<std::int32_t>(whole(options.digits, "digits", kMaxRoundedDigits));
    if (options.items != nullptr) made.items = static_cast<std::size_t>(whole(options.items, "items", INT32_MAX));
    if (options.start != nullptr) {
      made.has_start = true;
      made.start = real(options.start, "start");
    }
    const auto* special = std::find(std::begin(kSpecials), std::end(kSpecials), name);
    if (special != std::end(kSpecials) && (name != "distinct" || is_text)) {
      made.kind = Node::Kind::special;
      made.special = static_cast<Special>(special - std::begin(kSpecials));
      const Special function = made.special;
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
    if (made.source == Reading::Source::path && made.path.source() == FieldPath::Source::contents && !made.path.keys().empty())
      made.field = static_cast<std::int32_t>(selection_->fields.add(made.path));
    readings.push_back(std::move(made));
    return static_cast<std::int32_t>(readings.size() - 1);
  }

  Plan& plan_;
  Selection* selection_ = nullptr;
  std::size_t steps_ = 0;
};

}  // namespace

PyObject* new_plan(PyTypeObject* type, PyObject* selections) {
  auto plan = std::make_unique<Plan>();
  Compiler(*plan).selections(selections);
  return create(type, std::move(plan));
}

}  // namespace walle::columns
