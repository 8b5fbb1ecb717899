// Columns of a selection's events, as a plan reads them: values, texts, and distinct texts.
#pragma once
#include <span>
#include <string_view>

#include "bindings/stream/event_plan.h"
#include "stream/scratch.h"

namespace walle::columns {

class PlanColumns {
 public:
  // A distinct text but "": the index of its first event, and how often it occurs.
  struct Distinct {
    std::uint32_t first, count;
  };

  // Reads the fields of the selection. All arguments must outlive the columns.
  PlanColumns(const View& view, const Selection& selection, std::span<const std::uint32_t> rows, stream::Scratch& scratch);
  PlanColumns(const PlanColumns&) = delete;
  PlanColumns& operator=(const PlanColumns&) = delete;

  const Batch& batch() const noexcept { return *view_.batch; }
  const EventBatch& events() const noexcept { return *view_.batch->events; }
  std::span<const std::uint32_t> rows() const noexcept { return rows_; }
  const Reading& reading(std::int32_t number) const noexcept { return selection_.readings[static_cast<std::size_t>(number)]; }
  std::int64_t since_ms(std::size_t index) const noexcept { return events().ts_ms(rows_[index]) - first_ms_; }

  // Returns the values of a reading: one for each row, but one less of `gap_ms`.
  std::span<const Value> values(std::int32_t number);
  // Returns the texts of a reading, "" where the field has no text; they stay valid as long as the columns.
  std::span<const std::string_view> texts(std::int32_t number);
  // Returns the distinct texts of a reading but "", in the order of their first events.
  std::span<const Distinct> distinct(std::int32_t number);

 private:
  struct Digits {
    char characters[kMaxDigits];
  };
  struct Column {
    bool is_read = false, has_texts = false, has_distinct = false;
    std::span<Value> values;
    std::span<std::string_view> texts;
    std::span<Distinct> distinct;
  };

  const View& view_;
  const Selection& selection_;
  std::span<const std::uint32_t> rows_;
  stream::Scratch& scratch_;
  std::int64_t first_ms_;
  std::span<Value> fields_;  // columns of the table: all rows of the first one, then of the next one
  std::span<Column> columns_;
};

}  // namespace walle::columns
