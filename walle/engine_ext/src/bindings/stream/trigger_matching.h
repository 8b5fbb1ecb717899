// Matching of Python events to trigger conditions: strings to numbers, predicates, and the names of the triggered tasks.
#pragma once
#include <Python.h>

#include <vector>

#include "bindings/stream/string_table.h"
#include "bindings/stream/task_lists.h"
#include "stream/trigger_trie.h"

namespace walle {

// Functions that return a null pointer or -1 have set a Python error.
class TriggerMatching {
 public:
  // Errors about an event are of this class, called with the field and what is wrong with it.
  explicit TriggerMatching(PyObject* event_error) : event_error_(Py_NewRef(event_error)) {}
  ~TriggerMatching();
  TriggerMatching(const TriggerMatching&) = delete;
  TriggerMatching& operator=(const TriggerMatching&) = delete;

  // Add or remove a pair. Arguments: (trigger_ids, task, within_ms, skip_till_next, cooldown_ms, predicate or None, variant=0,
  // optional=0), the last one with a bit for each trigger id. They return whether the pair was added or removed.
  PyObject* add(PyObject* arguments);
  PyObject* remove(PyObject* arguments);

  // Returns a list of the tasks that the event triggers, sorted by name, as a new reference that no one else has. `ts_ms` and
  // `contents` are null if they are not known.
  PyObject* feed(PyObject* event_id, PyObject* page_id, PyObject* ts_ms, PyObject* contents);
  // As `feed`, of checked and numbered ids. `dropped` becomes a reference for the caller to release when nothing is half done, or
  // null.
  PyObject* feed_numbers(stream::Id event_id, stream::Id page_id, stream::Moment moment, PyObject* contents, PyObject*& dropped);
  // Returns two lists of one length: indices of events in the batch, and the tasks that these trigger. Nothing is fed if an
  // argument is wrong.
  PyObject* feed_many(PyObject* event_ids, PyObject* page_ids, PyObject* times, PyObject* contents);

  // Checks an event's field; they return 0, or -1.
  int check_event_id(PyObject* value) const;
  int check_page_id(PyObject* value) const;
  int read_time(PyObject* value, std::int64_t& ts_ms) const;
  // Reads the number of a string, or counts one more use of it (which ends by ids().release); they return 0, or -1.
  int number_of(PyObject* text, stream::Id& number) const {
    if (!PyUnicode_CheckExact(text)) return number_of_subclass(text, number);
    number = ids_.find(text);
    return 0;
  }
  int acquire(PyObject* text, stream::Id& number);
  // Sets the error and returns -1 while a predicate runs, which may not change what is being matched.
  int check_idle() const;

  int traverse(visitproc visit, void* arg) const;
  // Releases what may be in a cycle with the trie, which Python's garbage collector is removing. What that releases may run any
  // code, and call this trie: a predicate that is gone raises TypeError.
  void clear();

  // Whether a condition tests contents, which `feed_numbers` then needs.
  bool tests_contents() const noexcept { return tested_pairs_ != 0; }

  StringTable& ids() noexcept { return ids_; }
  const stream::TriggerTrie& trie() const noexcept { return trie_; }

 private:
  struct Predicate {
    PyObject* test = nullptr;
    std::size_t uses = 0;
  };
  struct Arguments {
    PyObject* trigger_ids;
    PyObject* task;
    PyObject* predicate;
    stream::Condition condition;
  };

  int number_of_subclass(PyObject* text, stream::Id& number) const;
  int parse(PyObject* arguments, Arguments& parsed) const;
  std::uint32_t find_predicate(PyObject* predicate, int& failed) const;
  void release(const stream::Condition& condition, stream::Id task) noexcept;
  bool match(stream::Id event_id, stream::Id page_id, stream::Moment moment, PyObject* contents);
  void sort_triggered();
  void rank_tasks();
  int refuse(const char* field, const char* what) const;
  int check_given(PyObject* times, PyObject* contents) const;

  stream::TriggerTrie trie_;
  StringTable ids_, tasks_;
  std::vector<Predicate> predicates_ = std::vector<Predicate>(1);  // number 0 is none
  std::vector<stream::Id> by_name_;                                // tasks, sorted
  std::vector<TaskName> names_;                                    // by task, if ranks_known_
  std::vector<TaskName> triggered_;                                // tasks that the latest event triggered
  TaskLists lists_;
  PyObject* event_error_;
  std::size_t timed_pairs_ = 0, tested_pairs_ = 0;
  std::int64_t fed_ = 0;
  bool ranks_known_ = true, matching_ = false;
};

}  // namespace walle
