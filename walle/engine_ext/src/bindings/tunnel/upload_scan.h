// Uploads of the tunnel (§5.2) in received bytes, read in one call.
#pragma once
#include <Python.h>

namespace walle {

// scan_uploads(buffer, at, decompressors, limits, record, values, seqs) -> (records, next, size_bytes)
//
// Reads the frames of uploads and of batches of uploads in `buffer` from `at` on, as walle.pipeline.tunnel.frames.Decoder does,
// and returns a `record` (a subclass of tuple) of each upload: (device_id, epoch, seq, topic, payload, sent_ms, received_ms).
// `next` is the place of the first frame that was not read: it is incomplete, of another kind, out of turn, or wrong. The decoder
// in Python reads that one, and says what is wrong with it: nothing is refused here.
//   decompressors  {number of a dictionary: ZstdDecompressor.decompress}; 0 is none
//   limits         (bytes of a body, uploads, bytes of topics and payloads): no frame is begun beyond the latter two
//   values         (device_id, epoch, received_ms)
//   seqs           (first, last): the numbers that are due
PyObject* scan_uploads(PyObject* module, PyObject* const* arguments, Py_ssize_t count);

// Adds the function to the module; returns 0, or -1 with a Python error.
int add_tunnel_functions(PyObject* module);

}  // namespace walle
