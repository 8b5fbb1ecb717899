#include "bindings/store/row_batch.h"

#include <algorithm>

#include "core/crc32.h"
#include "core/upload_chain.h"

namespace walle {

namespace {

constexpr std::int64_t kRowOverheadBytes = 32;  // ROW_OVERHEAD_BYTES of walle/pipeline/store_schema.py
// Python's sqlite3 looks for an adapter for each parameter of type bytes, and for none of type bytearray: 0.3 us against a copy.
constexpr Py_ssize_t kCopiedPayloadBytes = 8192;

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

  bool add_payload(PyObject* payload) {
    const Py_ssize_t size = PyBytes_GET_SIZE(payload);
    return add(size > kCopiedPayloadBytes ? Py_NewRef(payload) : PyByteArray_FromStringAndSize(PyBytes_AS_STRING(payload), size));
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
  return static_cast<std::int64_t>(PyUnicode_GET_LENGTH(topic)) + PyBytes_GET_SIZE(payload) + kRowOverheadBytes;
}

RowBatch::~RowBatch() { cut(0); }

int RowBatch::append(PyObject* topic, PyObject* payload, bool upload, std::int64_t ts_ms, std::int64_t position) {
  if (!PyUnicode_Check(topic) || !PyBytes_CheckExact(payload)) {
    PyErr_Format(PyExc_TypeError, "an output has a topic of type %s and a payload of type %s; give str and bytes",
                 Py_TYPE(topic)->tp_name, Py_TYPE(payload)->tp_name);
    return -1;
  }
  if (!has_header_ || rows_.empty() || rows_.back().topic != topic || rows_.back().ts_ms != ts_ms) {
    has_header_ = false;  // until the row is added
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(topic, &length);
    if (text == nullptr) return -1;
    std::byte head[12];
    put_big_endian(head, static_cast<std::uint64_t>(ts_ms), 8);
    put_big_endian(head + 8, static_cast<std::uint64_t>(length), 4);
    header_ = crc32(reinterpret_cast<const std::byte*>(text), static_cast<std::size_t>(length), crc32(head, sizeof(head)));
  }
  PyObject* own_topic = PyUnicode_FromObject(topic);  // of a subclass, a copy
  if (own_topic == nullptr) return -1;
  const std::uint32_t checksum = crc32(reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(payload)),
                                       static_cast<std::size_t>(PyBytes_GET_SIZE(payload)), header_);
  const Row row{own_topic, payload, ts_ms, position, checksum, upload};
  try {
    if (upload) grow(uploads_, 1);
    rows_.push_back(row);
  } catch (...) {
    Py_DECREF(own_topic);
    throw;
  }
  Py_INCREF(payload);
  has_header_ = true;
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
    rows_.swap(other.rows_);
    uploads_.swap(other.uploads_);
  } else {
    grow(rows_, other.rows_.size());
    grow(uploads_, other.uploads_.size());
    for (const std::size_t index : other.uploads_) uploads_.push_back(rows_.size() + index);
    rows_.insert(rows_.end(), other.rows_.begin(), other.rows_.end());
    other.rows_.clear();
    other.uploads_.clear();
  }
  has_header_ = other.has_header_ = false;
  size_bytes_ += other.size_bytes_;
  upload_bytes_ += other.upload_bytes_;
  other.size_bytes_ = other.upload_bytes_ = 0;
}

void RowBatch::cut(std::size_t count) {
  has_header_ = false;
  while (!uploads_.empty() && uploads_.back() >= count) uploads_.pop_back();
  while (rows_.size() > count) {
    const Row row = rows_.back();
    rows_.pop_back();
    size_bytes_ -= row.size_bytes();
    if (row.upload) upload_bytes_ -= row.size_bytes();
    Py_DECREF(row.topic);
    Py_DECREF(row.payload);
  }
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

PyObject* RowBatch::feature_parameters(std::size_t first, std::size_t count) const {
  if (first > rows_.size() || count > rows_.size() - first) {
    PyErr_SetString(PyExc_IndexError, "the batch has fewer rows");
    return nullptr;
  }
  Parameters parameters(5 * count);
  for (std::size_t i = first; i < first + count; ++i) {
    const Row& row = rows_[i];
    if (!parameters.add(Py_NewRef(row.topic)) || !parameters.add(PyLong_FromLongLong(row.ts_ms)) ||
        !parameters.add(PyLong_FromLongLong(row.position)) || !parameters.add_payload(row.payload) ||
        !parameters.add(PyLong_FromUnsignedLong(row.checksum ^ position_checksum(row.position))))
      return nullptr;
  }
  return parameters.release();
}

PyObject* RowBatch::upload_parameters(std::size_t first, std::size_t count, std::int64_t& seq, std::uint64_t& chain) const {
  if (first > uploads_.size() || count > uploads_.size() - first) {
    PyErr_SetString(PyExc_IndexError, "the batch has fewer rows to upload");
    return nullptr;
  }
  Parameters parameters(6 * count);
  for (std::size_t i = first; i < first + count; ++i) {
    const Row& row = rows_[uploads_[i]];
    ++seq;
    chain = next_link(chain, row.checksum);
    if (!parameters.add(PyLong_FromLongLong(seq)) || !parameters.add(Py_NewRef(row.topic)) ||
        !parameters.add_payload(row.payload) || !parameters.add(PyLong_FromLongLong(row.ts_ms)) ||
        !parameters.add(PyLong_FromUnsignedLong(row.checksum)) || !parameters.add(PyLong_FromUnsignedLongLong(chain)))
      return nullptr;
  }
  return parameters.release();
}

}  // namespace walle
