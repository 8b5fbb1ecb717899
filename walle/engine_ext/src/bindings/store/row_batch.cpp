#include "bindings/store/row_batch.h"

#include <algorithm>
#include <utility>

#include "bindings/store/packed_value.h"
#include "core/crc32.h"
#include "core/upload_chain.h"

namespace walle {

namespace {

constexpr std::int64_t kRowOverheadBytes = 32;  // ROW_OVERHEAD_BYTES of walle/pipeline/store_schema.py
// Python's sqlite3 looks for an adapter for each parameter of type bytes, and for none of type bytearray: 0.3 us against a copy.
constexpr std::size_t kCopiedPayloadBytes = PayloadBlocks::kMaxPayloadBytes;

void put_big_endian(std::byte* to, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) to[i] = static_cast<std::byte>(value >> 8 * (size - 1 - i));
}

std::uint32_t position_checksum(std::int64_t position) {
  std::byte bytes[8];
  put_big_endian(bytes, static_cast<std::uint64_t>(position), 8);
  return crc32(bytes, sizeof(bytes));
}

// Makes room for `more` items, twice as much as there is at least, so that the cost of an item stays constant.
template <typename Item>
void grow(std::vector<Item>& items, std::size_t more) {
  if (items.capacity() - items.size() < more) items.reserve(items.size() + std::max(items.size(), more));
}

// A list that takes its items in order.
class Parameters {
 public:
  explicit Parameters(std::size_t size) : list_(PyList_New(static_cast<Py_ssize_t>(size))) {}
  ~Parameters() { Py_XDECREF(list_); }
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  // Takes a new reference; false if it or the list is null.
  bool add(PyObject* item) {
    if (list_ == nullptr || item == nullptr) {
      Py_XDECREF(item);
      return false;
    }
    PyList_SET_ITEM(list_, at_++, item);
    return true;
  }

  // `payload` may be null if the size is at most kCopiedPayloadBytes.
  bool add_payload(const std::byte* data, std::size_t size, PyObject* payload) {
    if (size > kCopiedPayloadBytes) return add(Py_NewRef(payload));
    return add(PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(data), static_cast<Py_ssize_t>(size)));
  }

  PyObject* release() {
    PyObject* list = list_;
    list_ = nullptr;
    return list;
  }

 private:
  PyObject* list_;
  Py_ssize_t at_ = 0;
};

}  // namespace

std::int64_t RowBatch::Row::size_bytes() const {
  return static_cast<std::int64_t>(PyUnicode_GET_LENGTH(topic)) + static_cast<std::int64_t>(size) + kRowOverheadBytes;
}

RowBatch::~RowBatch() { cut(0); }

int RowBatch::append(PyObject* topic, PyObject* payload, bool upload, std::int64_t ts_ms, std::int64_t position) {
  if (!PyUnicode_Check(topic) || !PyBytes_CheckExact(payload)) {
    PyErr_Format(PyExc_TypeError, "an output has a topic of type %s and a payload of type %s; give str and bytes",
                 Py_TYPE(topic)->tp_name, Py_TYPE(payload)->tp_name);
    return -1;
  }
  return add(topic, reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(payload)),
             static_cast<std::size_t>(PyBytes_GET_SIZE(payload)), payload, upload, ts_ms, position);
}

int RowBatch::append_value(PyObject* topic, PyObject* value, std::int64_t size, bool upload, std::int64_t ts_ms,
                           std::int64_t position) {
  const auto length = static_cast<std::size_t>(size);
  if (!PyUnicode_Check(topic) || length > PayloadBlocks::kMaxPayloadBytes) {
    PyObject* payload = packed_value(value);
    const int failed = payload == nullptr ? -1 : append(topic, payload, upload, ts_ms, position);
    Py_XDECREF(payload);
    return failed;
  }
  std::byte* data = blocks_.push(length);
  try {
    if (pack_value(value, reinterpret_cast<char*>(data), size) == 0 &&
        add(topic, data, length, nullptr, upload, ts_ms, position) == 0)
      return 0;
  } catch (...) {
    blocks_.pop(length);
    throw;
  }
  blocks_.pop(length);
  return -1;
}

int RowBatch::add(PyObject* topic, const std::byte* data, std::size_t size, PyObject* payload, bool upload, std::int64_t ts_ms,
                  std::int64_t position) {
  // The checksum needs the topic's UTF-8, which a text with lone surrogates does not have.
  if ((rows_.empty() || rows_.back().topic != topic) && PyUnicode_AsUTF8AndSize(topic, nullptr) == nullptr) return -1;
  PyObject* own_topic = PyUnicode_FromObject(topic);  // of a subclass, a copy
  if (own_topic == nullptr) return -1;
  const Row row{own_topic, payload, data, size, ts_ms, position, 0, false, upload};
  try {
    if (upload) grow(uploads_, 1);
    rows_.push_back(row);
  } catch (...) {
    Py_DECREF(own_topic);
    throw;
  }
  Py_XINCREF(payload);
  size_bytes_ += row.size_bytes();
  if (upload) {
    uploads_.push_back(rows_.size() - 1);  // into memory that was reserved
    upload_bytes_ += row.size_bytes();
  }
  return 0;
}

int RowBatch::append_all(PyObject* outputs, std::int64_t ts_ms, std::int64_t position) {
  PyObject* sequence = PySequence_Fast(outputs, "outputs must be a sequence");
  if (sequence == nullptr) return -1;
  const std::size_t before = rows_.size();
  int failed = 0;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence) && failed == 0; ++i) {
    PyObject* output = PySequence_Fast_GET_ITEM(sequence, i);
    if (PyTuple_Check(output) && PyTuple_GET_SIZE(output) == 3 && PyBool_Check(PyTuple_GET_ITEM(output, 2))) {
      const bool upload = PyTuple_GET_ITEM(output, 2) == Py_True;
      failed = append(PyTuple_GET_ITEM(output, 0), PyTuple_GET_ITEM(output, 1), upload, ts_ms, position);
    } else {
      PyErr_Format(PyExc_TypeError, "output %zd is a %s; give a tuple of topic, payload and a bool", i, Py_TYPE(output)->tp_name);
      failed = -1;
    }
  }
  Py_DECREF(sequence);
  if (failed != 0) cut(before);
  return failed;
}

void RowBatch::take(RowBatch& other) {
  if (&other == this) return;
  if (rows_.empty()) {
    std::swap(blocks_, other.blocks_);
    rows_.swap(other.rows_);
    uploads_.swap(other.uploads_);
  } else {
    blocks_.take(other.blocks_);
    grow(rows_, other.rows_.size());
    grow(uploads_, other.uploads_.size());
    for (const std::size_t index : other.uploads_) uploads_.push_back(rows_.size() + index);
    rows_.insert(rows_.end(), other.rows_.begin(), other.rows_.end());
    other.rows_.clear();
    other.uploads_.clear();
  }
  size_bytes_ += other.size_bytes_;
  upload_bytes_ += other.upload_bytes_;
  other.size_bytes_ = other.upload_bytes_ = 0;
}

void RowBatch::cut(std::size_t count) {
  while (!uploads_.empty() && uploads_.back() >= count) uploads_.pop_back();
  while (rows_.size() > count) {
    const Row row = rows_.back();
    rows_.pop_back();
    size_bytes_ -= row.size_bytes();
    if (row.upload) upload_bytes_ -= row.size_bytes();
    Py_DECREF(row.topic);
    if (row.payload == nullptr)
      blocks_.pop(row.size);
    else
      Py_DECREF(row.payload);
  }
}

void RowBatch::clear() {
  cut(0);
  blocks_.clear();
}

PyObject* RowBatch::topics() const {
  PyObject* counts = PyDict_New();
  for (std::size_t i = 0, end = 0; i < rows_.size() && counts != nullptr; i = end) {
    PyObject* topic = rows_[i].topic;
    while (end < rows_.size() && rows_[end].topic == topic) ++end;
    PyObject* known = PyDict_GetItemWithError(counts, topic);  // borrowed
    const long long before = known == nullptr ? 0 : PyLong_AsLongLong(known);
    PyObject* count = PyErr_Occurred() != nullptr ? nullptr : PyLong_FromLongLong(before + static_cast<long long>(end - i));
    if (count == nullptr || PyDict_SetItem(counts, topic, count) < 0) Py_CLEAR(counts);
    Py_XDECREF(count);
  }
  return counts;
}

// Computed where a payload is copied for its statement, so that its bytes come into one core's cache, once.
std::uint32_t RowBatch::checksum_of(Row& row) {
  if (row.has_checksum) return row.checksum;
  if (header_topic_ != row.topic || header_ts_ms_ != row.ts_ms) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(row.topic, &length);  // the object has it since the row was added
    std::byte head[12];
    put_big_endian(head, static_cast<std::uint64_t>(row.ts_ms), 8);
    put_big_endian(head + 8, static_cast<std::uint64_t>(length), 4);
    header_ = crc32(reinterpret_cast<const std::byte*>(text), static_cast<std::size_t>(length), crc32(head, sizeof(head)));
    header_topic_ = row.topic;
    header_ts_ms_ = row.ts_ms;
  }
  row.has_checksum = true;
  return row.checksum = crc32(row.data, row.size, header_);
}

PyObject* RowBatch::feature_parameters(std::size_t first, std::size_t count) {
  if (first > rows_.size() || count > rows_.size() - first) {
    PyErr_SetString(PyExc_IndexError, "the batch has fewer rows");
    return nullptr;
  }
  Parameters parameters(5 * count);
  header_topic_ = nullptr;
  for (std::size_t i = first; i < first + count; ++i) {
    Row& row = rows_[i];
    const std::uint32_t checksum = checksum_of(row);
    if (!parameters.add(Py_NewRef(row.topic)) || !parameters.add(PyLong_FromLongLong(row.ts_ms)) ||
        !parameters.add(PyLong_FromLongLong(row.position)) || !parameters.add_payload(row.data, row.size, row.payload) ||
        !parameters.add(PyLong_FromUnsignedLong(checksum ^ position_checksum(row.position))))
      return nullptr;
  }
  return parameters.release();
}

PyObject* RowBatch::upload_parameters(std::size_t first, std::size_t count, std::int64_t& seq, std::uint64_t& chain) {
  if (first > uploads_.size() || count > uploads_.size() - first) {
    PyErr_SetString(PyExc_IndexError, "the batch has fewer rows to upload");
    return nullptr;
  }
  Parameters parameters(6 * count);
  header_topic_ = nullptr;
  for (std::size_t i = first; i < first + count; ++i) {
    Row& row = rows_[uploads_[i]];
    const std::uint32_t checksum = checksum_of(row);
    ++seq;
    chain = next_link(chain, checksum);
    if (!parameters.add(PyLong_FromLongLong(seq)) || !parameters.add(Py_NewRef(row.topic)) ||
        !parameters.add_payload(row.data, row.size, row.payload) || !parameters.add(PyLong_FromLongLong(row.ts_ms)) ||
        !parameters.add(PyLong_FromUnsignedLong(checksum)) || !parameters.add(PyLong_FromUnsignedLongLong(chain)))
      return nullptr;
  }
  return parameters.release();
}

}  // namespace walle
