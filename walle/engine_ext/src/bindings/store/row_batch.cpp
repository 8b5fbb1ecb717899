#include "bindings/store/row_batch.h"

#include <algorithm>
#include <utility>

#include "bindings/store/packed_value.h"
#include "core/crc32.h"
#include "core/upload_chain.h"

namespace walle {

namespace {

constexpr std::int64_t kRowOverheadBytes = 32;  // ROW_OVERHEAD_BYTES of walle/pipeline/features/store_schema.py

void put_big_endian(std::byte* to, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) to[i] = static_cast<std::byte>(value >> 8 * (size - 1 - i));
}

std::uint32_t position_checksum(std::int64_t position) {
  std::byte bytes[8];
  put_big_endian(bytes, static_cast<std::uint64_t>(position), 8);
  return crc32(bytes, sizeof(bytes));
}

PyObject* version_parameter(PyObject* version) { return version == nullptr ? PyUnicode_New(0, 0) : Py_NewRef(version); }

std::uint32_t version_checksum(PyObject* version) {
  if (version == nullptr) return 0;
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(version, &length);  // the object has it since the row was added
  return crc32(reinterpret_cast<const std::byte*>(text), static_cast<std::size_t>(length));
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
  return static_cast<std::int64_t>(PyUnicode_GET_LENGTH(topic)) + static_cast<std::int64_t>(payload.size()) + kRowOverheadBytes;
}

RowBatch::~RowBatch() { cut(0); }

int RowBatch::append(PyObject* topic, PyObject* payload, bool upload, PyObject* version, std::int64_t ts_ms,
                     std::int64_t position) {
  if (!PyUnicode_Check(topic) || !PyBytes_CheckExact(payload) || !PyUnicode_CheckExact(version)) {
    PyErr_Format(PyExc_TypeError, "an output has a topic, a payload and a version of type %s, %s and %s; give str, bytes and str",
                 Py_TYPE(topic)->tp_name, Py_TYPE(payload)->tp_name, Py_TYPE(version)->tp_name);
    return -1;
  }
  return add(topic, Payload{payload}, upload, PyUnicode_GET_LENGTH(version) == 0 ? nullptr : version, ts_ms, position);
}

int RowBatch::append_value(PyObject* topic, PyObject* value, std::int64_t size, bool upload, std::int64_t ts_ms,
                           std::int64_t position) {
  if (!PyUnicode_Check(topic)) {
    PyErr_Format(PyExc_TypeError, "a value has a topic of type %s; give a str", Py_TYPE(topic)->tp_name);
    return -1;
  }
  if (PyBytes_CheckExact(value)) return add(topic, Payload::of_bytes(value, size), upload, nullptr, ts_ms, position);
  PyObject* payload = payloads_.take(static_cast<std::size_t>(size));
  if (payload == nullptr) return -1;
  int failed = pack_value(value, PyByteArray_AS_STRING(payload), size);
  try {
    if (failed == 0) failed = add(topic, Payload{payload}, upload, nullptr, ts_ms, position);
  } catch (...) {
    payloads_.give(payload);
    throw;
  }
  payloads_.give(payload);
  return failed;
}

int RowBatch::add(PyObject* topic, const Payload& payload, bool upload, PyObject* version, std::int64_t ts_ms,
                  std::int64_t position) {
  // The checksum needs the topic's UTF-8, which a text with lone surrogates does not have.
  if ((rows_.empty() || rows_.back().topic != topic) && PyUnicode_AsUTF8AndSize(topic, nullptr) == nullptr) return -1;
  if (version != nullptr && PyUnicode_AsUTF8AndSize(version, nullptr) == nullptr) return -1;
  PyObject* own_topic = PyUnicode_FromObject(topic);  // a copy, if the type is a subclass
  if (own_topic == nullptr) return -1;
  const Row row{own_topic, payload, version, ts_ms, position, 0, false, upload};
  try {
    if (upload) grow(uploads_, 1);
    rows_.push_back(row);
  } catch (...) {
    Py_DECREF(own_topic);
    throw;
  }
  Py_INCREF(payload.object);
  Py_XINCREF(version);
  size_bytes_ += row.size_bytes();
  if (upload) {
    uploads_.push_back(rows_.size() - 1);  // the memory was reserved
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
    if (PyTuple_Check(output) && PyTuple_GET_SIZE(output) == 4 && PyBool_Check(PyTuple_GET_ITEM(output, 2))) {
      const bool upload = PyTuple_GET_ITEM(output, 2) == Py_True;
      failed =
          append(PyTuple_GET_ITEM(output, 0), PyTuple_GET_ITEM(output, 1), upload, PyTuple_GET_ITEM(output, 3), ts_ms, position);
    } else {
      PyErr_Format(PyExc_TypeError, "output %zd is a %s; give a tuple of topic, payload, a bool and a version", i,
                   Py_TYPE(output)->tp_name);
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
    Py_XDECREF(row.version);
    if (PyByteArray_CheckExact(row.payload.object))
      payloads_.give(row.payload.object);
    else
      Py_DECREF(row.payload.object);
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
  return row.checksum = row.payload.crc(header_);
}

template <typename Index>
bool RowBatch::have_one_topic(std::size_t first, std::size_t end, Index index_of) const {
  for (std::size_t i = first + 1; i < end; ++i)
    if (rows_[index_of(i)].topic != rows_[index_of(first)].topic) return false;
  return first < end;
}

PyObject* RowBatch::feature_parameters(std::size_t first, std::size_t count, bool& one_topic) {
  if (first > rows_.size() || count > rows_.size() - first) {
    PyErr_SetString(PyExc_IndexError, "the batch has fewer rows");
    return nullptr;
  }
  one_topic = have_one_topic(first, first + count, [](std::size_t i) { return i; });
  Parameters parameters(one_topic ? 1 + 4 * count : 5 * count);
  if (one_topic && !parameters.add(Py_NewRef(rows_[first].topic))) return nullptr;
  header_topic_ = nullptr;
  for (std::size_t i = first; i < first + count; ++i) {
    Row& row = rows_[i];
    const std::uint32_t checksum = checksum_of(row);
    if ((!one_topic && !parameters.add(Py_NewRef(row.topic))) || !parameters.add(PyLong_FromLongLong(row.ts_ms)) ||
        !parameters.add(PyLong_FromLongLong(row.position)) || !parameters.add(row.payload.parameter()) ||
        !parameters.add(PyLong_FromUnsignedLong(checksum ^ position_checksum(row.position))))
      return nullptr;
  }
  return parameters.release();
}

PyObject* RowBatch::upload_parameters(std::size_t first, std::size_t count, std::int64_t& seq, std::uint64_t& chain,
                                      bool& one_topic) {
  if (first > uploads_.size() || count > uploads_.size() - first) {
    PyErr_SetString(PyExc_IndexError, "the batch has fewer rows to upload");
    return nullptr;
  }
  one_topic = have_one_topic(first, first + count, [&](std::size_t i) { return uploads_[i]; });
  for (std::size_t i = first + 1; one_topic && i < first + count; ++i)
    one_topic = rows_[uploads_[i]].version == rows_[uploads_[first]].version;
  Parameters parameters(one_topic ? 3 + 5 * count : 8 * count);
  const auto add_origin = [&](const Row& row) {
    return parameters.add(Py_NewRef(row.topic)) && parameters.add(version_parameter(row.version)) &&
           parameters.add(PyLong_FromUnsignedLong(version_checksum(row.version)));
  };
  if (one_topic && !add_origin(rows_[uploads_[first]])) return nullptr;
  header_topic_ = nullptr;
  for (std::size_t i = first; i < first + count; ++i) {
    Row& row = rows_[uploads_[i]];
    const std::uint32_t checksum = checksum_of(row);
    ++seq;
    chain = next_link(chain, checksum);
    if ((!one_topic && !add_origin(row)) || !parameters.add(PyLong_FromLongLong(seq)) ||
        !parameters.add(row.payload.parameter()) || !parameters.add(PyLong_FromLongLong(row.ts_ms)) ||
        !parameters.add(PyLong_FromUnsignedLong(checksum)) || !parameters.add(PyLong_FromUnsignedLongLong(chain)))
      return nullptr;
  }
  return parameters.release();
}

}  // namespace walle
