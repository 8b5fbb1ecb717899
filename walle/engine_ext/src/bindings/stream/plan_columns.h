// Columns of a selection's events, as a plan reads them: values, texts, and distinct texts.
#pragma once
#include <span>

#include "bindings/stream/event_plan.h"

namespace walle::columns {

class PlanColumns {
 public:
  // A distinct text but "": the index of its first event, and how often it occurs.
  struct Distinct {
    std::uint32_t first, count;
  };

  // Reads the fields of the selection. `rows` is one or more; all arguments must outlive the columns.
  PlanColumns(const View& view, const Selection& selection, const Rows& rows);
  ~PlanColumns();
  PlanColumns(const PlanColumns&) = delete;
  PlanColumns& operator=(const PlanColumns&) = delete;

  const Batch& batch() const noexcept { return *view_.batch; }
  const EventBatch& events() const noexcept { return *view_.batch->events; }
  const Rows& rows() const noexcept { return rows_; }
  const Reading& reading(std::int32_t number) const noexcept { return selection_.readings[static_cast<std::size_t>(number)]; }
  std::int64_t since_ms(std::size_t index) const noexcept { return events().ts_ms(rows_[index]) - first_ms_; }

  // Returns the values of a reading: one for each row, but one less of `gap_ms`.
  std::span<const Value> values(std::int32_t number);
  // Returns a borrowed list of the texts of a reading, or a null pointer with a Python error.
  PyObject* texts(std::int32_t number);
  // Returns the distinct texts of a reading in the order of their first events; a null pointer with a Python error.
  const stream::Vector<Distinct>* distinct(std::int32_t number);
  // Returns a text that `distinct` found: a new reference.
  PyObject* text(std::int32_t number, std::uint32_t index);

 private:
  struct Column {
    bool is_read = false, has_distinct = false;
    std::span<Value> values;
    PyObject* texts = nullptr;  // a list
    stream::Vector<Distinct> distinct;
  };

  bool has_few_plain_texts(std::int32_t number);

  const View& view_;
  const Selection& selection_;
  const Rows& rows_;
  std::int64_t first_ms_;
  stream::Vector<Value> space_;  // of the fields in the table, then of the readings; one allocation
  stream::Vector<Column> columns_;
};

}  // namespace walle::columns
