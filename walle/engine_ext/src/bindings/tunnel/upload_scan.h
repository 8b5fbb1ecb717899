// Uploads of the tunnel (§5.2) in received bytes, read in one call; and the chain over them.
#pragma once
#include <Python.h>

namespace walle {

// scan_uploads(buffer, at, decompressors, limits, record, values, seqs) -> (records, next, size_bytes, unpacked)
//
// Reads the frames of uploads and of batches of uploads in `buffer` from `at` on, as walle.pipeline.tunnel.frames.Decoder does,
// and returns a `record` (a subclass of tuple) of each upload: (device_id, epoch, seq, topic, payload, sent_ms, received_ms).
// `next` is the place of the first frame that was not read: it is incomplete, of another kind, out of turn, or wrong. The decoder
// in Python reads that one, and says what is wrong with it: nothing is refused here. `unpacked` is its body where it was
// decompressed before that was known, None elsewhere.
//   decompressors  {number of a dictionary: ZstdDecompressor.decompress}; 0 is none
//   limits         (bytes of a body, uploads, bytes of topics and payloads): no frame is begun beyond the latter two
//   values         (device_id, epoch, received_ms)
//   seqs           (first, last): the numbers that are due
PyObject* scan_uploads(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// next_upload_link(chain, topic, payload, sent_ms) -> chain value after that upload (walle/pipeline/checksums.py)
PyObject* next_upload_link(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// Adds the functions to the module; returns 0, or -1 with a Python error.
int add_tunnel_functions(PyObject* module);

}  // namespace walle
