#include "bindings/stream/trigger_matching.h"

#include <algorithm>
#include <array>
#include <utility>

namespace walle {

namespace {

constexpr std::int64_t kMaxTimeMs = std::int64_t{1} << 53;  // walle.pipeline.events.event.MAX_TS_MS

// New references, which are released at the end of the scope.
template <std::size_t kCount>
struct References : std::array<PyObject*, kCount> {
  References() : std::array<PyObject*, kCount>{} {}
  ~References() {
    for (PyObject* one : *this) Py_XDECREF(one);
  }
  References(const References&) = delete;
  References& operator=(const References&) = delete;
};

bool is_wildcard(PyObject* text) { return PyUnicode_CompareWithASCIIString(text, "*") == 0; }

}  // namespace

TriggerMatching::~TriggerMatching() {
  for (const Predicate& predicate : predicates_) Py_XDECREF(predicate.test);
  Py_XDECREF(event_error_);
}

int TriggerMatching::traverse(visitproc visit, void* arg) const {
  Py_VISIT(event_error_);
  for (const Predicate& predicate : predicates_) Py_VISIT(predicate.test);
  return lists_.traverse(visit, arg);
}

void TriggerMatching::clear() {
  lists_.clear();
  for (std::size_t i = 1; i < predicates_.size(); ++i)
    if (predicates_[i].test != nullptr) Py_DECREF(std::exchange(predicates_[i].test, Py_NewRef(Py_None)));
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
  unsigned long long optional = 0;
  if (!PyArg_ParseTuple(arguments, "O!ULpLO|IK", &PyTuple_Type, &parsed.trigger_ids, &parsed.task, &within_ms, &skip,
                        &cooldown_ms, &parsed.predicate, &parsed.condition.variant, &optional))
    return -1;
  const Py_ssize_t length = PyTuple_GET_SIZE(parsed.trigger_ids);
  bool valid = length >= 1 && length <= static_cast<Py_ssize_t>(stream::kMaxLength) && within_ms >= 0 && cooldown_ms >= 0 &&
               within_ms <= kMaxTimeMs && cooldown_ms <= kMaxTimeMs && PyUnicode_CheckExact(parsed.task);
  for (Py_ssize_t i = 0; i < length && valid; ++i) valid = PyUnicode_CheckExact(PyTuple_GET_ITEM(parsed.trigger_ids, i));
  valid = valid && (optional == 0 || ((optional & 1) == 0 && optional >> (length - 1) == 0));
  if (!valid) {
    PyErr_SetString(
        PyExc_ValueError,
        "the condition is wrong: 1 to 64 trigger ids, the first and the last one not optional, and no negative option");
    return -1;
  }
  parsed.condition.optional = optional;
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
  if (condition.optional != 0 && stream::sequences_of(condition).empty()) {
    release(condition, task);
    PyErr_SetString(PyExc_ValueError, "the condition is wrong: its optional ids stand for more than 64 sequences");
    return nullptr;
  }
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

// Sets triggered_ to the triggered tasks, each once, sorted by name; returns false with a Python error.
bool TriggerMatching::match(stream::Id event_id, stream::Id page_id, stream::Moment moment, PyObject* contents) {
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
  const std::span<const stream::Id> tasks = trie_.feed(event_id, page_id, moment, {test, &context});
  matching_ = false;
  if (context.failed) return false;
  triggered_.resize(tasks.size());
  if (tasks.empty()) return true;
  if (!ranks_known_) rank_tasks();
  for (std::size_t i = 0; i < tasks.size(); ++i) triggered_[i] = names_[tasks[i]];
  if (tasks.size() > 1) sort_triggered();
  return true;
}

// Sorts the triggered tasks by name and removes repeated ones.
void TriggerMatching::sort_triggered() {
  TaskName* const names = triggered_.data();
  const std::size_t size = triggered_.size();
  if (size == 2 && names[0].rank != names[1].rank) {  // no branch: the order of the two cannot be predicted
    const std::size_t first = names[1].rank < names[0].rank ? 1 : 0;
    const TaskName pair[] = {names[first], names[1 - first]};
    std::copy_n(pair, 2, names);
    return;
  }
  std::sort(names, names + size, [](const TaskName& a, const TaskName& b) { return a.rank < b.rank; });
  const auto same = [](const TaskName& a, const TaskName& b) { return a.rank == b.rank; };
  triggered_.erase(std::unique(triggered_.begin(), triggered_.end(), same), triggered_.end());
}

void TriggerMatching::rank_tasks() {
  names_.resize(*std::max_element(by_name_.begin(), by_name_.end()) + 1);
  for (std::size_t i = 0; i < by_name_.size(); ++i)
    names_[by_name_[i]] = {tasks_.text(by_name_[i]), static_cast<std::uint32_t>(i)};
  ranks_known_ = true;
}

PyObject* TriggerMatching::feed_numbers(stream::Id event_id, stream::Id page_id, stream::Moment moment, PyObject* contents,
                                        PyObject*& dropped) {
  dropped = nullptr;
  return match(event_id, page_id, moment, contents) ? lists_.make(triggered_, dropped) : nullptr;
}

int TriggerMatching::number_of_subclass(PyObject* text, stream::Id& number) const {
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
  PyObject* dropped = nullptr;
  PyObject* tasks = feed_numbers(event_number, page_number, moment, contents, dropped);
  Py_XDECREF(dropped);
  return tasks;
}

PyObject* TriggerMatching::feed_many(PyObject* event_ids, PyObject* page_ids, PyObject* times, PyObject* contents) {
  if (check_idle() < 0 || check_given(times, contents) < 0) return nullptr;
  PyObject* given[] = {event_ids, page_ids, times, contents};
  References<4> columns;  // tuples, which a predicate cannot change
  for (std::size_t i = 0; i < 4; ++i) {
    if (given[i] == nullptr) continue;
    columns[i] = PySequence_Tuple(given[i]);
    if (columns[i] == nullptr) return nullptr;
    if (PyTuple_GET_SIZE(columns[i]) != PyTuple_GET_SIZE(columns[0]))
      return PyErr_Format(PyExc_ValueError, "the columns of a batch differ in length");
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
      return nullptr;
  }
  std::vector<PyObject*> texts;   // borrowed: while events are matched, no task is removed
  std::vector<std::size_t> ends;  // by row: where its tasks in `texts` end
  ends.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PyObject* tested = columns[3] == nullptr ? nullptr : PyTuple_GET_ITEM(columns[3], static_cast<Py_ssize_t>(i));
    if (!match(rows[i].event_id, rows[i].page_id, {rows[i].ts_ms, ++fed_}, tested)) return nullptr;
    for (const TaskName& task : triggered_) texts.push_back(task.text);
    ends.push_back(texts.size());
  }
  const auto length = static_cast<Py_ssize_t>(texts.size());
  References<2> found;  // indices and tasks
  for (std::size_t i = 0; i < 2; ++i)
    if ((found[i] = PyList_New(length)) == nullptr) return nullptr;
  for (std::size_t row = 0, at = 0; row < ends.size(); ++row) {
    if (at == ends[row]) continue;
    PyObject* index = PyLong_FromSize_t(row);
    if (index == nullptr) return nullptr;
    for (; at < ends[row]; ++at) {
      PyList_SET_ITEM(found[0], static_cast<Py_ssize_t>(at), Py_NewRef(index));
      PyList_SET_ITEM(found[1], static_cast<Py_ssize_t>(at), Py_NewRef(texts[at]));
    }
    Py_DECREF(index);
  }
  return PyTuple_Pack(2, found[0], found[1]);
}

}  // namespace walle
