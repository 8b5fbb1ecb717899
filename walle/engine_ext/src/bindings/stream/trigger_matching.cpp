#include "bindings/stream/trigger_matching.h"

#include <algorithm>

namespace walle {

namespace {

constexpr std::int64_t kMaxTimeMs = std::int64_t{1} << 53;  // walle.pipeline.events.MAX_TS_MS

bool is_wildcard(PyObject* text) { return PyUnicode_CompareWithASCIIString(text, "*") == 0; }

}  // namespace

TriggerMatching::~TriggerMatching() {
  for (const Predicate& predicate : predicates_) Py_XDECREF(predicate.test);
  Py_XDECREF(event_error_);
}

int TriggerMatching::traverse(visitproc visit, void* arg) const {
  Py_VISIT(event_error_);
  for (const Predicate& predicate : predicates_) Py_VISIT(predicate.test);
  return 0;
}

int TriggerMatching::refuse(const char* field, const char* what) const {
  PyObject* error = PyObject_CallFunction(event_error_, "ss", field, what);
  if (error == nullptr) return -1;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
  return -1;
}

int TriggerMatching::check_idle() const {
  if (!matching_) return 0;
  PyErr_SetString(PyExc_RuntimeError, "a predicate may not feed or change the trie that tests it");
  return -1;
}

int TriggerMatching::check_event_id(PyObject* value) const {
  if (!PyUnicode_Check(value)) return refuse("event_id", "must be str");
  return PyUnicode_GET_LENGTH(value) == 0 ? refuse("event_id", "is empty") : 0;
}

int TriggerMatching::check_page_id(PyObject* value) const {
  return PyUnicode_Check(value) ? 0 : refuse("page_id", "must be str");
}

int TriggerMatching::read_time(PyObject* value, std::int64_t& ts_ms) const {
  if (!PyLong_Check(value)) return refuse("ts_ms", "must be int");
  int overflow = 0;
  ts_ms = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow != 0 || ts_ms < 0 || ts_ms > kMaxTimeMs ? refuse("ts_ms", "is not milliseconds since the epoch") : 0;
}

int TriggerMatching::parse(PyObject* arguments, Arguments& parsed) const {
  long long within_ms = 0, cooldown_ms = 0;
  int skip = 0;
  if (check_idle() < 0) return -1;
  if (!PyArg_ParseTuple(arguments, "O!ULpLO|I", &PyTuple_Type, &parsed.trigger_ids, &parsed.task, &within_ms, &skip, &cooldown_ms,
                        &parsed.predicate, &parsed.condition.variant))
    return -1;
  const Py_ssize_t length = PyTuple_GET_SIZE(parsed.trigger_ids);
  bool valid = length >= 1 && length <= static_cast<Py_ssize_t>(stream::kMaxLength) && within_ms >= 0 && cooldown_ms >= 0 &&
               within_ms <= kMaxTimeMs && cooldown_ms <= kMaxTimeMs && PyUnicode_CheckExact(parsed.task);
  for (Py_ssize_t i = 0; i < length && valid; ++i) valid = PyUnicode_CheckExact(PyTuple_GET_ITEM(parsed.trigger_ids, i));
  if (!valid) {
    PyErr_SetString(PyExc_ValueError, "the condition is wrong: 1 to 64 trigger ids, and no negative option");
    return -1;
  }
  parsed.condition.within_ms = within_ms;
  parsed.condition.cooldown_ms = cooldown_ms;
  parsed.condition.skip_till_next = skip != 0;
  return 0;
}

// Returns the number of the predicate, 0 if it has none.
std::uint32_t TriggerMatching::find_predicate(PyObject* predicate, int& failed) const {
  for (std::size_t i = 1; i < predicates_.size() && failed == 0; ++i) {
    if (predicates_[i].test == nullptr) continue;
    const int equal = PyObject_RichCompareBool(predicates_[i].test, predicate, Py_EQ);
    if (equal > 0) return static_cast<std::uint32_t>(i);
    failed = equal < 0 ? -1 : 0;
  }
  return 0;
}

PyObject* TriggerMatching::add(PyObject* arguments) {
  Arguments parsed;
  if (parse(arguments, parsed) < 0) return nullptr;
  stream::Condition& condition = parsed.condition;
  if (parsed.predicate != Py_None) {
    int failed = 0;
    condition.predicate = find_predicate(parsed.predicate, failed);
    if (failed < 0) return nullptr;
    if (condition.predicate == 0) {
      const auto unused =
          std::find_if(predicates_.begin() + 1, predicates_.end(), [](const auto& one) { return one.test == nullptr; });
      condition.predicate = static_cast<std::uint32_t>(unused - predicates_.begin());
      if (unused == predicates_.end()) predicates_.emplace_back();
      predicates_[condition.predicate] = {Py_NewRef(parsed.predicate), 0};
    }
    ++predicates_[condition.predicate].uses;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parsed.trigger_ids); ++i) {
    PyObject* text = PyTuple_GET_ITEM(parsed.trigger_ids, i);
    condition.trigger_ids.push_back(is_wildcard(text) ? stream::kWildcard : ids_.acquire(text));
  }
  const stream::Id task = tasks_.acquire(parsed.task);
  if (!trie_.add(condition, task)) {
    release(condition, task);
    Py_RETURN_FALSE;
  }
  if (tasks_.uses(task) == 1) {
    const auto after = [this](stream::Id left, PyObject* right) { return PyUnicode_Compare(tasks_.text(left), right) < 0; };
    by_name_.insert(std::lower_bound(by_name_.begin(), by_name_.end(), parsed.task, after), task);
    ranks_known_ = false;
  }
  timed_pairs_ += condition.within_ms != 0 || condition.cooldown_ms != 0 ? 1 : 0;
  tested_pairs_ += condition.predicate != 0 ? 1 : 0;
  Py_RETURN_TRUE;
}

void TriggerMatching::release(const stream::Condition& condition, stream::Id task) noexcept {
  tasks_.release(task);
  for (const stream::Id id : condition.trigger_ids)
    if (id != stream::kWildcard) ids_.release(id);
  if (condition.predicate != 0 && --predicates_[condition.predicate].uses == 0) Py_CLEAR(predicates_[condition.predicate].test);
}

PyObject* TriggerMatching::remove(PyObject* arguments) {
  Arguments parsed;
  if (parse(arguments, parsed) < 0) return nullptr;
  stream::Condition& condition = parsed.condition;
  if (parsed.predicate != Py_None) {
    int failed = 0;
    condition.predicate = find_predicate(parsed.predicate, failed);
    if (failed < 0) return nullptr;
    if (condition.predicate == 0) Py_RETURN_FALSE;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parsed.trigger_ids); ++i) {
    PyObject* text = PyTuple_GET_ITEM(parsed.trigger_ids, i);
    condition.trigger_ids.push_back(is_wildcard(text) ? stream::kWildcard : ids_.find(text));
    if (condition.trigger_ids.back() == stream::kUnknown) Py_RETURN_FALSE;
  }
  const stream::Id task = tasks_.find(parsed.task);
  if (task == stream::kUnknown || !trie_.remove(condition, task)) Py_RETURN_FALSE;
  if (tasks_.uses(task) == 1) {
    by_name_.erase(std::find(by_name_.begin(), by_name_.end(), task));
    ranks_known_ = false;
  }
  timed_pairs_ -= condition.within_ms != 0 || condition.cooldown_ms != 0 ? 1 : 0;
  tested_pairs_ -= condition.predicate != 0 ? 1 : 0;
  release(condition, task);
  Py_RETURN_TRUE;
}

int TriggerMatching::check_given(PyObject* times, PyObject* contents) const {
  if (times == nullptr && timed_pairs_ != 0) {
    PyErr_SetString(PyExc_ValueError, "ts_ms is missing: a trigger condition here has within_ms or cooldown_ms");
    return -1;
  }
  if (contents == nullptr && tested_pairs_ != 0) {
    PyErr_SetString(PyExc_ValueError, "contents are missing: a trigger condition here tests them (where)");
    return -1;
  }
  return 0;
}

// Returns the triggered tasks, each once, sorted by name; a null pointer with a Python error.
std::vector<stream::Id>* TriggerMatching::match(stream::Id event_id, stream::Id page_id, stream::Moment moment,
                                                PyObject* contents) {
  struct Context {
    const TriggerMatching* matching;
    PyObject* contents;
    bool failed;
  };
  Context context{this, contents, false};
  const auto test = [](void* opaque, std::uint32_t predicate) {
    auto* given = static_cast<Context*>(opaque);
    if (given->failed) return false;
    PyObject* result = PyObject_CallOneArg(given->matching->predicates_[predicate].test, given->contents);
    const int passed = result == nullptr ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    given->failed = passed < 0;
    return passed > 0;
  };
  matching_ = tested_pairs_ != 0;
  std::vector<stream::Id>& tasks = trie_.feed(event_id, page_id, moment, {test, &context});
  matching_ = false;
  if (context.failed) return nullptr;
  if (tasks.size() > 1) sort(tasks);
  return &tasks;
}

void TriggerMatching::sort(std::vector<stream::Id>& tasks) {
  if (!ranks_known_) {
    rank_.resize(*std::max_element(by_name_.begin(), by_name_.end()) + 1);
    for (std::size_t i = 0; i < by_name_.size(); ++i) rank_[by_name_[i]] = static_cast<std::uint32_t>(i);
    ranks_known_ = true;
  }
  std::sort(tasks.begin(), tasks.end(), [this](stream::Id a, stream::Id b) { return rank_[a] < rank_[b]; });
  tasks.erase(std::unique(tasks.begin(), tasks.end()), tasks.end());
}

PyObject* TriggerMatching::feed_numbers(stream::Id event_id, stream::Id page_id, stream::Moment moment, PyObject* contents) {
  const std::vector<stream::Id>* triggered = match(event_id, page_id, moment, contents);
  if (triggered == nullptr) return nullptr;
  PyObject* tasks = PyList_New(static_cast<Py_ssize_t>(triggered->size()));
  if (tasks == nullptr) return nullptr;
  for (std::size_t i = 0; i < triggered->size(); ++i)
    PyList_SET_ITEM(tasks, static_cast<Py_ssize_t>(i), Py_NewRef(tasks_.text((*triggered)[i])));
  return tasks;
}

int TriggerMatching::number_of(PyObject* text, stream::Id& number) const {
  if (PyUnicode_CheckExact(text)) {
    number = ids_.find(text);
    return 0;
  }
  PyObject* exact = PyUnicode_FromObject(text);
  if (exact == nullptr) return -1;
  number = ids_.find(exact);
  Py_DECREF(exact);
  return 0;
}

int TriggerMatching::acquire(PyObject* text, stream::Id& number) {
  PyObject* exact = PyUnicode_FromObject(text);
  if (exact == nullptr) return -1;
  number = ids_.acquire(exact);
  Py_DECREF(exact);
  return 0;
}

PyObject* TriggerMatching::feed(PyObject* event_id, PyObject* page_id, PyObject* ts_ms, PyObject* contents) {
  stream::Moment moment;
  stream::Id event_number = stream::kUnknown, page_number = stream::kUnknown;
  if (check_idle() < 0 || check_given(ts_ms, contents) < 0 || check_event_id(event_id) < 0 || check_page_id(page_id) < 0 ||
      (ts_ms != nullptr && read_time(ts_ms, moment.ts_ms) < 0) || number_of(event_id, event_number) < 0 ||
      number_of(page_id, page_number) < 0)
    return nullptr;
  moment.position = ++fed_;
  return feed_numbers(event_number, page_number, moment, contents);
}

PyObject* TriggerMatching::feed_many(PyObject* event_ids, PyObject* page_ids, PyObject* times, PyObject* contents) {
  if (check_idle() < 0 || check_given(times, contents) < 0) return nullptr;
  PyObject* given[] = {event_ids, page_ids, times, contents};
  PyObject* columns[4] = {};  // tuples, which a predicate cannot change
  PyObject* found = nullptr;
  const auto finish = [&](bool failed) {
    for (PyObject* column : columns) Py_XDECREF(column);
    if (failed) Py_CLEAR(found);
    return found;
  };
  for (int i = 0; i < 4; ++i) {
    if (given[i] == nullptr) continue;
    columns[i] = PySequence_Tuple(given[i]);
    if (columns[i] == nullptr) return finish(true);
    if (PyTuple_GET_SIZE(columns[i]) != PyTuple_GET_SIZE(columns[0])) {
      PyErr_SetString(PyExc_ValueError, "the columns of a batch differ in length");
      return finish(true);
    }
  }
  struct Row {
    stream::Id event_id, page_id;
    std::int64_t ts_ms;
  };
  std::vector<Row> rows(static_cast<std::size_t>(PyTuple_GET_SIZE(columns[0])));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<Py_ssize_t>(i);
    PyObject *event_id = PyTuple_GET_ITEM(columns[0], at), *page_id = PyTuple_GET_ITEM(columns[1], at);
    if (check_event_id(event_id) < 0 || check_page_id(page_id) < 0 || number_of(event_id, rows[i].event_id) < 0 ||
        number_of(page_id, rows[i].page_id) < 0 ||
        (columns[2] != nullptr && read_time(PyTuple_GET_ITEM(columns[2], at), rows[i].ts_ms) < 0))
      return finish(true);
  }
  found = PyList_New(0);
  if (found == nullptr) return finish(true);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<Py_ssize_t>(i);
    PyObject* tested = columns[3] == nullptr ? nullptr : PyTuple_GET_ITEM(columns[3], at);
    const std::vector<stream::Id>* triggered = match(rows[i].event_id, rows[i].page_id, {rows[i].ts_ms, ++fed_}, tested);
    if (triggered == nullptr) return finish(true);
    if (triggered->empty()) continue;
    PyObject* index = PyLong_FromSsize_t(at);
    for (std::size_t j = 0; j < triggered->size() && index != nullptr; ++j) {
      PyObject* pair = PyTuple_Pack(2, index, tasks_.text((*triggered)[j]));
      if (pair != nullptr)
        PyObject_GC_UnTrack(pair);  // an int and a str make no cycle: the collector need not walk a large batch
      if (pair == nullptr || PyList_Append(found, pair) < 0) Py_CLEAR(index);
      Py_XDECREF(pair);
    }
    if (index == nullptr) return finish(true);
    Py_DECREF(index);
  }
  return finish(false);
}

}  // namespace walle
