// Uploads of the tunnel (§5.2) in received bytes, read in one call; and the chain over them.
#pragma once
#include <Python.h>

namespace walle {

// (device_id, epoch, seq, topic, payload, sent_ms, received_ms, packed, version):
// walle.pipeline.tunnel.server.connection.Received
inline constexpr Py_ssize_t kRecordFields = 9;
inline constexpr Py_ssize_t kPackedField = 7;
inline constexpr Py_ssize_t kVersionField = 8;

// One reading of uploads from bytes. The members in the first group are to be set before `read`, and are borrowed.
struct UploadScan {
  PyObject* decompressors = nullptr;  // a dict; for these see scan_uploads
  PyTypeObject* record = nullptr;
  PyObject* device_id = nullptr;
  PyObject* epoch = nullptr;
  PyObject* received_ms = nullptr;
  long long due = 0;  // the number of the next upload; `read` moves it
  long long last_seq = 0;
  Py_ssize_t max_body_bytes = 0;
  bool has_versions = false;  // a NUL in a topic's field ends the topic, and its task's version follows

  // Topic and version of the latest upload, owned: those of one device are mostly the same.
  PyObject* topic = nullptr;
  PyObject* version = nullptr;
  PyObject* records = nullptr;   // a list, made before `read`; owned
  PyObject* unpacked = nullptr;  // the body of the frame at which the scan ended, owned; null if it was not decompressed
  Py_ssize_t size_bytes = 0;     // size of the records' topics, payloads and compressed bodies

  UploadScan() = default;
  UploadScan(const UploadScan&) = delete;
  UploadScan& operator=(const UploadScan&) = delete;
  ~UploadScan();

  // Appends the records of frames from `at` on; returns the place of the first that was not read, -1 with a Python error.
  Py_ssize_t read(const unsigned char* bytes, Py_ssize_t end, Py_ssize_t at, Py_ssize_t max_uploads, Py_ssize_t max_size_bytes);

 private:
  // Sets `topic`; returns false without an error if the bytes are not UTF-8.
  bool read_topic(const char* text, Py_ssize_t bytes);
  // Sets `version`, to an empty text where the bytes are not a version; returns as `read_topic`.
  bool read_version(const char* text, Py_ssize_t bytes);
  // Appends the records of a body, all or none. Returns false if it is not that of uploads in turn, or with a Python error.
  bool append(const unsigned char* body, Py_ssize_t bytes, bool is_batch);
  // Appends the record of the upload at `body`, and returns its bytes; -1 as `append`.
  Py_ssize_t append_one(const unsigned char* body, Py_ssize_t bytes);
  // As `append`, for a compressed body.
  bool append_compressed(const unsigned char* body, Py_ssize_t bytes, bool is_batch, int dictionary);
  // Puts the compressed body of the latest record into it where a store may keep that; returns false with a Python error.
  bool keep_packed(const unsigned char* body, Py_ssize_t bytes);
};

// scan_uploads(buffer, at, decompressors, limits, record, values, seqs, has_versions=False) -> (records, next, size_bytes,
// unpacked)
//
// Reads the frames of uploads and of batches of uploads in `buffer` from `at` on, as walle.pipeline.tunnel.frames.Decoder does,
// and returns a `record` (a subclass of tuple) of each upload: (device_id, epoch, seq, topic, payload, sent_ms, received_ms,
// packed, version). `packed` is the compressed body, where it was that of one large upload, needs no dictionary and is worth
// storing; else empty. `next` is the place of the first frame that was not read: it is incomplete, of another kind, out of turn,
// or wrong. The decoder in Python reads that one, and says what is wrong with it: nothing is refused here. `unpacked` is its body
// where it was decompressed before that was known, None elsewhere.
//   decompressors  {number of a dictionary: ZstdDecompressor.decompress}; 0 is none
//   limits         (bytes of a body, uploads, bytes of topics and payloads): no frame is begun beyond the latter two
//   values         (device_id, epoch, received_ms)
//   seqs           (first, last): the numbers that are due
//   has_versions   whether uploads may have versions: the connection has protocol 4
PyObject* scan_uploads(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// next_upload_link(chain, topic, payload, sent_ms) -> chain value after that upload (walle/pipeline/features/checksums.py)
PyObject* next_upload_link(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// Adds the functions to the module; returns 0, or -1 with a Python error.
int add_tunnel_functions(PyObject* module);

}  // namespace walle
