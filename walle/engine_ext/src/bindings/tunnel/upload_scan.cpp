#include "bindings/tunnel/upload_scan.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "core/crc32.h"
#include "core/upload_chain.h"

namespace walle {

namespace {

constexpr Py_ssize_t kHeaderBytes = 8;  // body length, 4 bytes | kind, 1 | flags, 1 | dictionary, 2
constexpr Py_ssize_t kFixedBytes = 24;  // fixed part of an upload: seq, 8 | topic length, 4 | payload length, 4 | sent_ms, 8
constexpr int kUpload = 3;
constexpr int kBatch = 19;
constexpr Py_ssize_t kMaxBatchBytes = 64 << 10;
constexpr Py_ssize_t kFields = kRecordFields;
constexpr Py_ssize_t kMaxVersionBytes = 64;  // MAX_VERSION_CHARS of walle/protocol/tunnel.py
// A compressed body is kept beside the payload if the payload is large, the body saves a quarter of it at least, and what a
// reader decompresses is bounded by what is stored.
constexpr Py_ssize_t kPackedFromBytes = 8 << 10;
constexpr Py_ssize_t kMostTimesPacked = 16;

// The sizes of a body are sums of two 32-bit numbers and a constant, which must not overflow.
static_assert(sizeof(Py_ssize_t) >= 8, "uploads are read on 64-bit systems only");

template <class T>
T big_endian(const unsigned char* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value << 8 | at[i]);
  return value;
}

std::uint64_t little_endian(const unsigned char* at, int bytes) {
  std::uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
  return value;
}

// Content size that a zstd frame states (RFC 8878, 3.1.1.1); none if it states none, or is not a zstd frame.
std::optional<std::uint64_t> content_size(const unsigned char* frame, Py_ssize_t bytes) {
  if (bytes < 5 || little_endian(frame, 4) != 0xFD2FB528) return std::nullopt;
  const int descriptor = frame[4];
  const bool single_segment = (descriptor & 0x20) != 0;
  if ((descriptor & 0x08) != 0) return std::nullopt;  // reserved
  constexpr int kDictionaryBytes[] = {0, 1, 2, 4};
  constexpr int kSizeBytes[] = {0, 2, 4, 8};
  const int size_bytes = descriptor >> 6 == 0 ? (single_segment ? 1 : 0) : kSizeBytes[descriptor >> 6];
  const Py_ssize_t at = 5 + (single_segment ? 0 : 1) + kDictionaryBytes[descriptor & 3];
  if (size_bytes == 0 || bytes < at + size_bytes) return std::nullopt;
  return little_endian(frame + at, size_bytes) + (size_bytes == 2 ? 256 : 0);
}

PyMethodDef tunnel_functions[] = {
    {"scan_uploads", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(scan_uploads)), METH_FASTCALL, nullptr},
    {"next_upload_link", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(next_upload_link)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

UploadScan::~UploadScan() {
  Py_XDECREF(version);
  Py_XDECREF(unpacked);
  Py_XDECREF(records);
  Py_XDECREF(topic);
}

bool UploadScan::read_topic(const char* text, Py_ssize_t bytes) {
  if (topic != nullptr) {
    Py_ssize_t same_bytes = 0;
    const char* same = PyUnicode_AsUTF8AndSize(topic, &same_bytes);
    if (same == nullptr) return false;
    if (same_bytes == bytes && std::memcmp(same, text, static_cast<std::size_t>(bytes)) == 0) return true;
  }
  PyObject* decoded = PyUnicode_DecodeUTF8(text, bytes, nullptr);
  if (decoded == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    return false;
  }
  Py_XSETREF(topic, decoded);
  return true;
}

bool UploadScan::read_version(const char* text, Py_ssize_t bytes) {
  bool is_sound = bytes <= kMaxVersionBytes;
  for (Py_ssize_t i = 0; is_sound && i < bytes; ++i) is_sound = text[i] > ' ' && text[i] <= '~';
  if (!is_sound) {  // any other text is an unknown version; bytes that are not UTF-8 are refused
    PyObject* decoded = PyUnicode_DecodeUTF8(text, bytes, nullptr);
    if (decoded == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
      return false;
    }
    Py_DECREF(decoded);
    bytes = 0;
  }
  if (version != nullptr && PyUnicode_GET_LENGTH(version) == bytes &&
      std::memcmp(PyUnicode_1BYTE_DATA(version), text, static_cast<std::size_t>(bytes)) == 0)
    return true;
  PyObject* decoded = PyUnicode_DecodeASCII(text, bytes, nullptr);
  if (decoded == nullptr) return false;
  Py_XSETREF(version, decoded);
  return true;
}

bool UploadScan::append(const unsigned char* body, Py_ssize_t bytes, bool is_batch) {
  if (bytes == 0) return false;
  const Py_ssize_t before = PyList_GET_SIZE(records);
  const long long due_before = due;
  const Py_ssize_t size_before = size_bytes;
  Py_ssize_t at = 0;
  do {
    Py_ssize_t used = append_one(body + at, bytes - at);
    if (used < 0) break;
    at += used;
  } while (is_batch && at < bytes);
  if (at == bytes) return true;
  due = due_before;
  size_bytes = size_before;
  PyObject* error = PyErr_GetRaisedException();
  PyList_SetSlice(records, before, PyList_GET_SIZE(records), nullptr);
  if (error != nullptr) PyErr_SetRaisedException(error);
  return false;
}

Py_ssize_t UploadScan::append_one(const unsigned char* body, Py_ssize_t bytes) {
  if (bytes < kFixedBytes) return -1;
  const auto seq = static_cast<long long>(big_endian<std::uint64_t>(body));
  const auto topic_bytes = static_cast<Py_ssize_t>(big_endian<std::uint32_t>(body + 8));
  const auto payload_size = static_cast<Py_ssize_t>(big_endian<std::uint32_t>(body + 12));
  const auto sent_ms = static_cast<long long>(big_endian<std::uint64_t>(body + 16));
  const Py_ssize_t used = kFixedBytes + topic_bytes + payload_size;
  if (used > bytes || seq != due || seq > last_seq) return -1;
  const char* text = reinterpret_cast<const char*>(body + kFixedBytes);
  Py_ssize_t name_bytes = topic_bytes, version_at = topic_bytes;
  if (has_versions && topic_bytes > 0) {
    if (const void* end = std::memchr(text, 0, static_cast<std::size_t>(topic_bytes)); end != nullptr) {
      name_bytes = static_cast<const char*>(end) - text;
      version_at = name_bytes + 1;
    }
  }
  if (!read_topic(text, name_bytes) || !read_version(text + version_at, topic_bytes - version_at)) return -1;
  PyObject* made = record->tp_alloc(record, kFields);
  if (made == nullptr) return -1;
  PyTuple_SET_ITEM(made, 0, Py_NewRef(device_id));
  PyTuple_SET_ITEM(made, 1, Py_NewRef(epoch));
  PyTuple_SET_ITEM(made, 2, PyLong_FromLongLong(seq));
  PyTuple_SET_ITEM(made, 3, Py_NewRef(topic));
  PyTuple_SET_ITEM(made, 4, PyBytes_FromStringAndSize(text + topic_bytes, payload_size));
  PyTuple_SET_ITEM(made, 5, PyLong_FromLongLong(sent_ms));
  PyTuple_SET_ITEM(made, 6, Py_NewRef(received_ms));
  PyTuple_SET_ITEM(made, kPackedField, PyBytes_FromStringAndSize(nullptr, 0));
  PyTuple_SET_ITEM(made, kVersionField, Py_NewRef(version));
  const bool whole = PyTuple_GET_ITEM(made, 2) != nullptr && PyTuple_GET_ITEM(made, 4) != nullptr &&
                     PyTuple_GET_ITEM(made, 5) != nullptr && PyTuple_GET_ITEM(made, kPackedField) != nullptr;
  const int failed = whole ? PyList_Append(records, made) : -1;
  Py_DECREF(made);
  if (failed < 0) return -1;
  ++due;
  size_bytes += topic_bytes + payload_size;
  return used;
}

bool UploadScan::append_compressed(const unsigned char* body, Py_ssize_t bytes, bool is_batch, int dictionary) {
  const Py_ssize_t bound = is_batch && kMaxBatchBytes < max_body_bytes ? kMaxBatchBytes : max_body_bytes;
  const std::optional<std::uint64_t> size = content_size(body, bytes);
  if (!size || *size > static_cast<std::uint64_t>(bound)) return false;
  PyObject* number = PyLong_FromLong(dictionary);
  if (number == nullptr) return false;
  PyObject* decompress = PyDict_GetItemWithError(decompressors, number);
  Py_DECREF(number);
  if (decompress == nullptr) return false;
  Py_INCREF(decompress);
  PyObject* view = PyMemoryView_FromMemory(const_cast<char*>(reinterpret_cast<const char*>(body)), bytes, PyBUF_READ);
  PyObject* output_size = PyLong_FromUnsignedLongLong(*size);
  PyObject* made = nullptr;
  if (view != nullptr && output_size != nullptr) {
    // max_output_size, read_across_frames, allow_extra_data
    PyObject* arguments[] = {view, output_size, Py_False, Py_False};
    made = PyObject_Vectorcall(decompress, arguments, 4, nullptr);
  }
  Py_XDECREF(output_size);
  Py_XDECREF(view);
  Py_DECREF(decompress);
  if (made == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();  // the decoder meets it again, and says what it is
    return false;
  }
  if (!PyBytes_CheckExact(made) || static_cast<std::uint64_t>(PyBytes_GET_SIZE(made)) != *size) {
    Py_DECREF(made);
    return false;
  }
  if (!append(reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(made)), PyBytes_GET_SIZE(made), is_batch)) {
    unpacked = made;
    return false;
  }
  Py_DECREF(made);
  return is_batch || dictionary != 0 || keep_packed(body, bytes);
}

bool UploadScan::keep_packed(const unsigned char* body, Py_ssize_t bytes) {
  PyObject* made = PyList_GET_ITEM(records, PyList_GET_SIZE(records) - 1);
  const Py_ssize_t payload_bytes = PyBytes_GET_SIZE(PyTuple_GET_ITEM(made, 4));
  if (payload_bytes < kPackedFromBytes || bytes > payload_bytes / 4 * 3 || bytes < payload_bytes / kMostTimesPacked) return true;
  PyObject* packed = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(body), bytes);
  if (packed == nullptr) return false;
  PyObject* before = PyTuple_GET_ITEM(made, kPackedField);
  PyTuple_SET_ITEM(made, kPackedField, packed);  // nobody else has the record yet
  Py_DECREF(before);
  size_bytes += bytes;
  return true;
}

Py_ssize_t UploadScan::read(const unsigned char* bytes, Py_ssize_t end, Py_ssize_t at, Py_ssize_t max_uploads,
                            Py_ssize_t max_size_bytes) {
  while (end - at >= kHeaderBytes && PyList_GET_SIZE(records) < max_uploads && size_bytes < max_size_bytes) {
    const auto length = static_cast<Py_ssize_t>(big_endian<std::uint32_t>(bytes + at));
    const int kind = bytes[at + 4];
    const int flags = bytes[at + 5];
    const int dictionary = big_endian<std::uint16_t>(bytes + at + 6);
    const bool is_batch = kind == kBatch;
    if (!is_batch && kind != kUpload) break;
    if (length > max_body_bytes || (is_batch && length > kMaxBatchBytes) || flags > 1 || (flags == 0 && dictionary != 0)) break;
    const Py_ssize_t start = at + kHeaderBytes;
    if (length > end - start) break;
    const bool appended =
        flags == 0 ? append(bytes + start, length, is_batch) : append_compressed(bytes + start, length, is_batch, dictionary);
    if (!appended) {
      if (PyErr_Occurred()) return -1;
      break;
    }
    at = start + length;
  }
  return at;
}

PyObject* scan_uploads(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 7 && count != 8) {
    PyErr_Format(PyExc_TypeError, "scan_uploads takes 7 or 8 arguments, got %zd", count);
    return nullptr;
  }
  UploadScan scan;
  Py_ssize_t at = PyLong_AsSsize_t(arguments[1]);
  if (at == -1 && PyErr_Occurred()) return nullptr;
  Py_ssize_t max_uploads = 0;
  Py_ssize_t max_size_bytes = 0;
  if (!PyDict_Check(arguments[2]) || !PyType_Check(arguments[4]) ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(arguments[4]), &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "scan_uploads: decompressors must be a dict, and record a subclass of tuple");
    return nullptr;
  }
  for (const int tuple : {3, 5, 6}) {
    if (!PyTuple_Check(arguments[tuple])) {
      PyErr_SetString(PyExc_TypeError, "scan_uploads: limits, values and seqs must be tuples");
      return nullptr;
    }
  }
  if (!PyArg_ParseTuple(arguments[3], "nnn", &scan.max_body_bytes, &max_uploads, &max_size_bytes) ||
      !PyArg_ParseTuple(arguments[5], "UUO!", &scan.device_id, &scan.epoch, &PyLong_Type, &scan.received_ms) ||
      !PyArg_ParseTuple(arguments[6], "LL", &scan.due, &scan.last_seq))
    return nullptr;
  scan.decompressors = arguments[2];
  scan.record = reinterpret_cast<PyTypeObject*>(arguments[4]);
  scan.has_versions = count == 8 && arguments[7] == Py_True;
  Py_buffer buffer;
  if (PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0) return nullptr;
  if (at < 0 || at > buffer.len) {
    PyErr_Format(PyExc_ValueError, "scan_uploads: begins at %zd of %zd bytes", at, buffer.len);
    at = -1;
  } else {
    scan.records = PyList_New(0);
    at = scan.records == nullptr
             ? -1
             : scan.read(static_cast<const unsigned char*>(buffer.buf), buffer.len, at, max_uploads, max_size_bytes);
  }
  PyBuffer_Release(&buffer);
  if (at < 0) return nullptr;
  return Py_BuildValue("OnnO", scan.records, at, scan.size_bytes, scan.unpacked == nullptr ? Py_None : scan.unpacked);
}

PyObject* next_upload_link(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4 || !PyUnicode_Check(arguments[1]) || !PyBytes_Check(arguments[2])) {
    PyErr_SetString(PyExc_TypeError, "next_upload_link takes a chain value, a topic (str), a payload (bytes) and a time");
    return nullptr;
  }
  const std::uint64_t chain = PyLong_AsUnsignedLongLong(arguments[0]);
  if (PyErr_Occurred()) return nullptr;
  const long long sent_ms = PyLong_AsLongLong(arguments[3]);
  if (sent_ms == -1 && PyErr_Occurred()) return nullptr;
  Py_ssize_t topic_bytes = 0;
  const char* topic = PyUnicode_AsUTF8AndSize(arguments[1], &topic_bytes);
  if (topic == nullptr) return nullptr;
  std::byte head[12];  // sent_ms, 8 | bytes of the topic, 4
  for (int i = 0; i < 8; ++i) head[i] = static_cast<std::byte>(static_cast<std::uint64_t>(sent_ms) >> (56 - 8 * i));
  for (int i = 0; i < 4; ++i) head[8 + i] = static_cast<std::byte>(topic_bytes >> (24 - 8 * i));
  std::uint32_t checksum = crc32(head, sizeof(head));
  checksum = crc32(reinterpret_cast<const std::byte*>(topic), static_cast<std::size_t>(topic_bytes), checksum);
  checksum = crc32(reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(arguments[2])),
                   static_cast<std::size_t>(PyBytes_GET_SIZE(arguments[2])), checksum);
  return PyLong_FromUnsignedLongLong(next_link(chain, checksum));
}

int add_tunnel_functions(PyObject* module) { return PyModule_AddFunctions(module, tunnel_functions); }

}  // namespace walle
