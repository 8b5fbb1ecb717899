// Uploads in the tunnel's server (§5.2): from the bytes that a connection received into one queue of all connections, and their
// acknowledgement back. No Python code runs for an upload on this way but the transport's
// (docs/adr/0023-tunnel.md).
//
// UploadQueue(record, buffer, time, monotonic, *, uploads, size_bytes, receiver_bytes, window, read_uploads, read_bytes,
//             least_uploads, least_bytes, turn_bytes)
//   A queue of `record`s (see upload_scan.h): those that wait, of which len() is the number, and those that were taken and are
//   not stored yet. Devices take turns (turns.h), of `turn_bytes` each; the uploads of one device, of whatever connection, stay
//   in order.
//     buffer               a writable buffer into which every receiver's bytes are read
//     time, monotonic      functions of a clock, in seconds
//     uploads, size_bytes  the queue is full (`is_full`) at so many uploads that wait, or bytes of topics and payloads of both
//     receiver_bytes       bytes of both at which one device is to be held back
//     least_uploads, least_bytes  where uploads of other devices wait, a device is held back earlier: once it has as much in the
//                          queue as there is room for more, but not below these. The last eighth of the queue is kept for
//                          devices that have less; `has_room` is whether anything else is left
//     window               uploads that a receiver may be ahead of its latest acknowledgement
//     read_uploads, read_bytes  uploads, and bytes of them, of one read at which the rest is left to `on_bytes`
//   take(limit)      Returns the uploads whose turn it is, at most `limit`.
//   put_back()       Makes the uploads that were taken wait again, each before the later ones of its device.
//   release()        Drops the uploads that were taken: they are stored.
//   resumable()      Returns the receivers that were called `on_bound` and whose device has less than half of its bound in the
//                    queue since, each once.
//   acknowledge(receivers, highest)  Calls `acknowledge` of receivers[device_id] for each {(device_id, epoch): seq} of `highest`,
//                    if its epoch is that one.
//   on_arrival       called once, at the next upload, and then None
//   held_bytes, oldest_s     of both: bytes of topics and payloads; the time at which the oldest came, None if there is none
//   devices          the number of devices whose uploads wait
//   uploads, bytes_in, bytes_out, waited_s  counts since the beginning, over all receivers; seconds that the uploads which were
//                    taken had waited, together
//
// UploadReceiver(queue)
//   Base class of a connection's asyncio.BufferedProtocol. While it is open, is not paused and has nothing buffered,
//   `buffer_updated` queues the whole uploads that are due. It calls, of its subclass, `on_bytes(received, unpacked)` with a view
//   of the bytes that it did not read, and the body of the first frame if it was decompressed; and `on_bound()` when the queue is
//   full or the device is to be held back. open(device_id, epoch, acked, decompressors, max_body_bytes)  Begins after
//   upload number `acked`. push(records)    Queues uploads, of which the first is due. acknowledge(seq) Sends an Ack of all
//   uploads up to `seq`, which are stored; does nothing if that was sent before. send_ack()       Sends the latest Ack again;
//   while the transport is not writable it sets `owes_ack` instead. send(frame)      Writes a frame. write            the
//   transport's function, None once the connection is lost pauses, buffered_bytes, is_open, is_writable  set by the subclass;
//   has_sent  set by each read due, acked, upload_bytes, written  number of the next upload and of the latest acknowledged; bytes
//   of the device in the queue; frames sent. room  uploads, and bytes of them, that may be pushed at once now. received_bytes  of
//   all reads
#pragma once
#include <Python.h>

namespace walle {

// Adds both types to the module; returns 0, or -1 with a Python error.
int add_upload_queue_types(PyObject* module);

}  // namespace walle
