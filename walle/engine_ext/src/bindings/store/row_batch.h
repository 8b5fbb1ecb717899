// Rows of one transaction of the feature store: outputs with their checksums, and the parameters of the statements that insert
// them.
#pragma once
#include <Python.h>

#include <cstdint>
#include <vector>

#include "bindings/store/payload.h"
#include "bindings/store/payload_pool.h"

namespace walle {

// The checksums and the chain are those of walle/pipeline/features/checksums.py, which says what they mean. Methods that can fail
// return -1 or a null pointer with a Python error, and have then changed nothing.
class RowBatch {
 public:
  RowBatch() = default;
  ~RowBatch();
  RowBatch(const RowBatch&) = delete;
  RowBatch& operator=(const RowBatch&) = delete;

  // Bounds on what is added: rows and bytes that the batch has before, and bytes to upload that it has after, of which `used` are
  // elsewhere. The first of those bytes are always accepted. From `due_rows` rows on, the caller has to start a timer or a
  // transaction after an addition.
  struct Limits {
    std::int64_t rows = 0, size_bytes = 0, used = 0, upload_bytes = 0, due_rows = 0;
  };
  void set_limits(const Limits& limits) { limits_ = limits; }

  // Adds one output. `topic` and `version` are str, `payload` bytes.
  int append(PyObject* topic, PyObject* payload, bool upload, PyObject* version, std::int64_t ts_ms, std::int64_t position);
  // Adds one output whose payload is the encoding of `value`, which packed_size has measured.
  int append_value(PyObject* topic, PyObject* value, std::int64_t size, bool upload, std::int64_t ts_ms, std::int64_t position);
  // Adds the outputs of a sequence: tuples of topic, payload (bytes), upload and version (a str, empty if unknown).
  int append_all(PyObject* outputs, std::int64_t ts_ms, std::int64_t position);
  // Returns whether the limits allow one more addition before it is made, and whether they allowed it after.
  bool is_open() const noexcept { return static_cast<std::int64_t>(size()) < limits_.rows && size_bytes_ < limits_.size_bytes; }
  bool is_due() const noexcept { return static_cast<std::int64_t>(size()) >= limits_.due_rows; }
  bool is_within_uploads() const noexcept { return limits_.used + upload_bytes_ <= limits_.upload_bytes; }
  bool has_uploads() const noexcept { return limits_.used + upload_bytes_ > 0; }
  // Keeps the first `count` rows.
  void cut(std::size_t count);
  // Removes all rows, and keeps memory for the next ones.
  void clear() { cut(0); }
  // Moves the rows of `other` to the end.
  void take(RowBatch& other);

  std::size_t size() const noexcept { return rows_.size(); }
  std::size_t uploads() const noexcept { return uploads_.size(); }
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  std::int64_t upload_bytes() const noexcept { return upload_bytes_; }

  // Returns a new dict: for each topic, its number of rows.
  PyObject* topics() const;
  // Returns a new list for `count` rows: topic, ts_ms, position, payload and checksum of each. If they have `one_topic`, it is
  // the first item, and of no row.
  PyObject* feature_parameters(std::size_t first, std::size_t count, bool& one_topic);
  // Returns such a list for `count` of the rows to upload: topic, version, the version's checksum, number, payload, ts_ms,
  // checksum and chain value of each. The first three come once if they are those of all rows. `seq` and `chain` are those
  // before the first, and become those of the last.
  PyObject* upload_parameters(std::size_t first, std::size_t count, std::int64_t& seq, std::uint64_t& chain, bool& one_topic);

 private:
  struct Row {
    PyObject* topic;
    Payload payload;    // a reference of its own
    PyObject* version;  // version of the task that made it; null if unknown, which an empty text becomes
    std::int64_t ts_ms, position;
    std::uint32_t checksum;  // checksum of topic, time and payload, if has_checksum
    bool has_checksum;
    bool upload;
    std::int64_t size_bytes() const;
  };
  std::uint32_t checksum_of(Row& row);
  int add(PyObject* topic, const Payload& payload, bool upload, PyObject* version, std::int64_t ts_ms, std::int64_t position);
  // Returns whether the rows `index_of` first to end - 1 have the same topic.
  template <typename Index>
  bool have_one_topic(std::size_t first, std::size_t end, Index index_of) const;

  std::vector<Row> rows_;
  PayloadPool payloads_;
  std::vector<std::size_t> uploads_;  // indices of the rows to upload
  std::int64_t size_bytes_ = 0, upload_bytes_ = 0;
  std::uint32_t header_ = 0;          // the checksum of a topic and a time, those of the latest computed checksum
  PyObject* header_topic_ = nullptr;  // borrowed, while parameters are made
  std::int64_t header_ts_ms_ = 0;
  Limits limits_;
};

// Adds the type RowBatch and the function packed_value to the module; returns 0, or -1 with a Python error.
int add_store_types(PyObject* module);

}  // namespace walle
