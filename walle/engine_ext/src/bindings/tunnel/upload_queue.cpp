#include "bindings/tunnel/upload_queue.h"

#include <structmember.h>

#include <cstdint>
#include <deque>
#include <new>
#include <utility>

#include "bindings/tunnel/upload_scan.h"

namespace walle {

namespace {

constexpr unsigned char kAckKind = 4;  // of a frame (docs/protocol.md)

struct ReceiverObject;

// One upload on its way to the store; owns its references.
struct QueuedUpload {
  PyObject* record;
  ReceiverObject* receiver;
  Py_ssize_t size_bytes;
  double queued_s;
};

struct QueueObject {
  PyObject_HEAD PyTypeObject* record;
  PyObject* view;  // of `buffer`
  Py_buffer buffer;
  PyObject* time;
  PyObject* monotonic;
  PyObject* on_arrival;  // called once at the next upload, and then removed; or null
  Py_ssize_t max_uploads, max_bytes, receiver_bytes, window, read_uploads, read_bytes;
  Py_ssize_t held_bytes;
  long long uploads, bytes_in, bytes_out;  // since the beginning
  std::deque<QueuedUpload>* waiting;
  std::deque<QueuedUpload>* taken;
};

struct ReceiverObject {
  PyObject_HEAD QueueObject* queue;
  PyObject* device_id;
  PyObject* epoch;
  PyObject* decompressors;  // a dict; null before `open`
  PyObject* topic;          // of the latest upload, or null
  PyObject* version;        // of its task, or null
  PyObject* write;          // of the transport
  Py_ssize_t max_body_bytes;
  Py_ssize_t buffered_bytes;
  Py_ssize_t upload_bytes;
  long long due;
  long long acked;
  long long written;
  int pauses;
  char is_open, is_writable, has_sent, owes_ack, has_versions;
};

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

QueueObject* queue_of(PyObject* self) { return reinterpret_cast<QueueObject*>(self); }
ReceiverObject* receiver_of(PyObject* self) { return reinterpret_cast<ReceiverObject*>(self); }

// Whether an attribute that Python code assigns holds anything.
bool is_set(PyObject* attribute) { return attribute != nullptr && attribute != Py_None; }

void release(QueuedUpload& upload) {
  Py_DECREF(upload.record);
  Py_DECREF(reinterpret_cast<PyObject*>(upload.receiver));
}

PyObject* queue_acknowledge(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// --- the queue ---

bool is_full(const QueueObject& queue) {
  return static_cast<Py_ssize_t>(queue.waiting->size()) >= queue.max_uploads || queue.held_bytes >= queue.max_bytes;
}

// Returns seconds by a function of a clock; -1 with a Python error.
double seconds(PyObject* clock) {
  PyObject* now = PyObject_CallNoArgs(clock);
  if (now == nullptr) return -1;
  const double value = PyFloat_AsDouble(now);
  Py_DECREF(now);
  return value;
}

// Returns the bytes of a record's topic, payload and compressed body; -1 with a Python error.
Py_ssize_t size_of(PyObject* record) {
  PyObject* topic = PyTuple_GET_ITEM(record, 3);
  PyObject* payload = PyTuple_GET_ITEM(record, 4);
  PyObject* packed = PyTuple_GET_ITEM(record, kPackedField);
  PyObject* version = PyTuple_GET_ITEM(record, kVersionField);
  Py_ssize_t topic_bytes = 0;
  if (!PyUnicode_Check(topic) || !PyBytes_Check(payload) || !PyBytes_Check(packed) || !PyUnicode_Check(version)) {
    PyErr_SetString(PyExc_TypeError, "an upload has a topic (str), a payload and a compressed body (bytes), and a version (str)");
    return -1;
  }
  if (PyUnicode_AsUTF8AndSize(topic, &topic_bytes) == nullptr) return -1;
  return topic_bytes + PyBytes_GET_SIZE(payload) + PyBytes_GET_SIZE(packed);
}

// Queues a list of records of a receiver; returns false with a Python error.
bool push(ReceiverObject* self, PyObject* records) {
  QueueObject& queue = *self->queue;
  const double now_s = seconds(queue.monotonic);
  if (PyErr_Occurred() != nullptr) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(records); ++i) {
    PyObject* record = PyList_GET_ITEM(records, i);
    if (Py_TYPE(record) != queue.record || PyTuple_GET_SIZE(record) != kRecordFields)
      return PyErr_SetString(PyExc_TypeError, "an upload is not a record of the queue"), false;
    const Py_ssize_t size_bytes = size_of(record);
    if (size_bytes < 0) return false;
    try {
      queue.waiting->push_back({record, self, size_bytes, now_s});
    } catch (const std::bad_alloc&) {
      return PyErr_NoMemory(), false;
    }
    Py_INCREF(record);
    Py_INCREF(reinterpret_cast<PyObject*>(self));
    queue.held_bytes += size_bytes;
    self->upload_bytes += size_bytes;
    ++queue.uploads;
  }
  if (PyObject* on_arrival = queue.on_arrival; is_set(on_arrival)) {
    queue.on_arrival = nullptr;
    PyObject* answer = PyObject_CallNoArgs(on_arrival);
    Py_DECREF(on_arrival);
    if (answer == nullptr) return false;
    Py_DECREF(answer);
  }
  if (is_full(queue) || self->upload_bytes >= queue.receiver_bytes) {
    PyObject* answer = PyObject_CallMethod(reinterpret_cast<PyObject*>(self), "on_bound", nullptr);
    if (answer == nullptr) return false;
    Py_DECREF(answer);
  }
  return true;
}

PyObject* queue_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* const kNames[] = {"record",         "buffer", "time",         "monotonic",  "uploads", "size_bytes",
                                       "receiver_bytes", "window", "read_uploads", "read_bytes", nullptr};
  QueueObject read{};
  PyObject* record = nullptr;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OOO$nnnnnn", const_cast<char**>(kNames), &PyType_Type, &record,
                                   &read.view, &read.time, &read.monotonic, &read.max_uploads, &read.max_bytes,
                                   &read.receiver_bytes, &read.window, &read.read_uploads, &read.read_bytes))
    return nullptr;
  read.record = reinterpret_cast<PyTypeObject*>(record);
  if (!PyType_IsSubtype(read.record, &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "UploadQueue: record must be a subclass of tuple");
    return nullptr;
  }
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) return nullptr;
  QueueObject* self = queue_of(made);
  self->waiting = new (std::nothrow) std::deque<QueuedUpload>;
  self->taken = new (std::nothrow) std::deque<QueuedUpload>;
  self->view = PyMemoryView_FromObject(read.view);
  if (self->waiting == nullptr || self->taken == nullptr) PyErr_NoMemory();
  if (PyErr_Occurred() != nullptr || PyObject_GetBuffer(self->view, &self->buffer, PyBUF_WRITABLE) < 0) {
    Py_DECREF(made);
    return nullptr;
  }
  self->record = reinterpret_cast<PyTypeObject*>(Py_NewRef(record));
  self->time = Py_NewRef(read.time);
  self->monotonic = Py_NewRef(read.monotonic);
  self->max_uploads = read.max_uploads;
  self->max_bytes = read.max_bytes;
  self->receiver_bytes = read.receiver_bytes;
  self->window = read.window;
  self->read_uploads = read.read_uploads;
  self->read_bytes = read.read_bytes;
  return made;
}

int queue_traverse(PyObject* object, visitproc visit, void* arg) {
  QueueObject* self = queue_of(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->record);
  Py_VISIT(self->view);
  Py_VISIT(self->time);
  Py_VISIT(self->monotonic);
  Py_VISIT(self->on_arrival);
  for (std::deque<QueuedUpload>* uploads : {self->waiting, self->taken}) {
    if (uploads == nullptr) continue;
    for (QueuedUpload& upload : *uploads) {
      Py_VISIT(upload.record);
      Py_VISIT(reinterpret_cast<PyObject*>(upload.receiver));
    }
  }
  return 0;
}

// Only what may be part of a cycle; the rest is in use until the end.
int queue_clear(PyObject* object) {
  QueueObject* self = queue_of(object);
  Py_CLEAR(self->on_arrival);
  for (std::deque<QueuedUpload>* uploads : {self->waiting, self->taken}) {
    if (uploads == nullptr) continue;
    std::deque<QueuedUpload> cleared;
    cleared.swap(*uploads);
    for (QueuedUpload& upload : cleared) release(upload);
  }
  return 0;
}

void queue_dealloc(PyObject* object) {
  QueueObject* self = queue_of(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  queue_clear(object);
  delete self->waiting;
  delete self->taken;
  PyBuffer_Release(&self->buffer);
  Py_XDECREF(self->view);
  Py_XDECREF(self->record);
  Py_XDECREF(self->time);
  Py_XDECREF(self->monotonic);
  type->tp_free(object);
  Py_DECREF(type);
}

Py_ssize_t queue_length(PyObject* self) { return static_cast<Py_ssize_t>(queue_of(self)->waiting->size()); }
PyObject* queue_is_full(PyObject* self, void*) { return PyBool_FromLong(is_full(*queue_of(self))); }

PyObject* queue_oldest_s(PyObject* object, void*) {
  QueueObject* self = queue_of(object);
  const std::deque<QueuedUpload>& oldest = self->taken->empty() ? *self->waiting : *self->taken;
  if (oldest.empty()) Py_RETURN_NONE;
  return PyFloat_FromDouble(oldest.front().queued_s);
}

// take(limit) -> list of records
PyObject* queue_take(PyObject* object, PyObject* argument) {
  QueueObject* self = queue_of(object);
  const Py_ssize_t limit = PyLong_AsSsize_t(argument);
  if (limit == -1 && PyErr_Occurred() != nullptr) return nullptr;
  const auto waiting = static_cast<Py_ssize_t>(self->waiting->size());
  const Py_ssize_t count = limit < waiting ? limit : waiting;
  PyObject* records = PyList_New(count < 0 ? 0 : count);
  if (records == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    try {
      self->taken->push_back(self->waiting->front());
    } catch (const std::bad_alloc&) {
      if (i > 0 && PyList_SetSlice(records, i, count, nullptr) == 0) return records;
      Py_DECREF(records);
      return PyErr_NoMemory();
    }
    PyList_SET_ITEM(records, i, Py_NewRef(self->waiting->front().record));
    self->waiting->pop_front();
  }
  return records;
}

PyObject* queue_put_back(PyObject* object, PyObject*) {
  QueueObject* self = queue_of(object);
  try {
    while (!self->taken->empty()) {
      self->waiting->push_front(self->taken->back());
      self->taken->pop_back();
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* queue_release(PyObject* object, PyObject*) {
  QueueObject* self = queue_of(object);
  while (!self->taken->empty()) {
    QueuedUpload upload = self->taken->front();
    self->taken->pop_front();
    self->held_bytes -= upload.size_bytes;
    upload.receiver->upload_bytes -= upload.size_bytes;
    release(upload);
  }
  Py_RETURN_NONE;
}

PyMethodDef queue_methods[] = {{"take", queue_take, METH_O, nullptr},
                               {"put_back", queue_put_back, METH_NOARGS, nullptr},
                               {"release", queue_release, METH_NOARGS, nullptr},
                               {"acknowledge", as_method(queue_acknowledge), METH_FASTCALL, nullptr},
                               {nullptr, nullptr, 0, nullptr}};
PyMemberDef queue_members[] = {{"on_arrival", T_OBJECT, offsetof(QueueObject, on_arrival), 0, nullptr},
                               {"held_bytes", T_PYSSIZET, offsetof(QueueObject, held_bytes), READONLY, nullptr},
                               {"uploads", T_LONGLONG, offsetof(QueueObject, uploads), READONLY, nullptr},
                               {"bytes_in", T_LONGLONG, offsetof(QueueObject, bytes_in), READONLY, nullptr},
                               {"bytes_out", T_LONGLONG, offsetof(QueueObject, bytes_out), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef queue_properties[] = {{"is_full", queue_is_full, nullptr, nullptr, nullptr},
                                  {"oldest_s", queue_oldest_s, nullptr, nullptr, nullptr},
                                  {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot queue_slots[] = {{Py_tp_new, reinterpret_cast<void*>(queue_new)},
                             {Py_tp_traverse, reinterpret_cast<void*>(queue_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(queue_clear)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(queue_dealloc)},
                             {Py_tp_methods, queue_methods},
                             {Py_tp_members, queue_members},
                             {Py_tp_getset, queue_properties},
                             {Py_sq_length, reinterpret_cast<void*>(queue_length)},
                             {0, nullptr}};
PyType_Spec queue_spec = {"walle.engine_ext._core.UploadQueue", sizeof(QueueObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, queue_slots};

// --- a receiver ---

int receiver_init(PyObject* object, PyObject* arguments, PyObject* keywords) {
  static const char* const kNames[] = {"queue", nullptr};
  ReceiverObject* self = receiver_of(object);
  PyObject* queue = nullptr;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O", const_cast<char**>(kNames), &queue)) return -1;
  if (Py_TYPE(queue)->tp_dealloc != queue_dealloc || self->queue != nullptr) {
    PyErr_SetString(PyExc_TypeError, "UploadReceiver takes an UploadQueue, once");
    return -1;
  }
  self->queue = queue_of(Py_NewRef(queue));
  self->device_id = PyUnicode_New(0, 0);
  self->epoch = PyUnicode_New(0, 0);
  self->due = 1;
  self->is_writable = 1;
  return self->device_id == nullptr || self->epoch == nullptr ? -1 : 0;
}

int receiver_traverse(PyObject* object, visitproc visit, void* arg) {
  ReceiverObject* self = receiver_of(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<PyObject*>(self->queue));
  Py_VISIT(self->decompressors);
  Py_VISIT(self->write);
  return 0;
}

// The queue is in use until the end, and breaks its own cycles.
int receiver_clear(PyObject* object) {
  Py_CLEAR(receiver_of(object)->write);
  return 0;
}

void receiver_dealloc(PyObject* object) {
  ReceiverObject* self = receiver_of(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  receiver_clear(object);
  Py_XDECREF(reinterpret_cast<PyObject*>(self->queue));
  Py_XDECREF(self->device_id);
  Py_XDECREF(self->epoch);
  Py_XDECREF(self->decompressors);
  Py_XDECREF(self->topic);
  Py_XDECREF(self->version);
  type->tp_free(object);
  Py_DECREF(type);
}

// Returns the receiver; a null pointer with a Python error if its __init__ was not called.
ReceiverObject* ready(PyObject* object) {
  if (receiver_of(object)->queue != nullptr) return receiver_of(object);
  PyErr_SetString(PyExc_TypeError, "UploadReceiver.__init__ was not called");
  return nullptr;
}

// open(device_id, epoch, acked, decompressors, max_body_bytes, has_versions=False)
PyObject* receiver_open(PyObject* object, PyObject* arguments) {
  ReceiverObject* self = ready(object);
  PyObject *device_id = nullptr, *epoch = nullptr, *decompressors = nullptr;
  long long acked = 0;
  Py_ssize_t max_body_bytes = 0;
  int has_versions = 0;
  if (self == nullptr || !PyArg_ParseTuple(arguments, "UULO!n|p", &device_id, &epoch, &acked, &PyDict_Type, &decompressors,
                                           &max_body_bytes, &has_versions))
    return nullptr;
  Py_XSETREF(self->device_id, Py_NewRef(device_id));
  Py_XSETREF(self->epoch, Py_NewRef(epoch));
  Py_XSETREF(self->decompressors, Py_NewRef(decompressors));
  self->acked = acked;
  self->due = acked + 1;
  self->max_body_bytes = max_body_bytes;
  self->has_versions = has_versions != 0;
  self->is_open = 1;
  Py_RETURN_NONE;
}

PyObject* receiver_get_buffer(PyObject* object, PyObject*) {
  ReceiverObject* self = ready(object);
  return self == nullptr ? nullptr : Py_NewRef(self->queue->view);
}

PyObject* receiver_buffer_updated(PyObject* object, PyObject* argument) {
  ReceiverObject* self = ready(object);
  if (self == nullptr) return nullptr;
  QueueObject& queue = *self->queue;
  const Py_ssize_t bytes = PyLong_AsSsize_t(argument);
  if (bytes == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (bytes < 0 || bytes > queue.buffer.len)
    return PyErr_Format(PyExc_ValueError, "%zd bytes were read into a buffer of %zd", bytes, queue.buffer.len);
  queue.bytes_in += bytes;
  self->has_sent = 1;
  UploadScan scan;
  Py_ssize_t read_bytes = 0;
  // Most reads are whole uploads that are due, and nothing else.
  if (self->is_open && self->decompressors != nullptr && self->buffered_bytes == 0 && self->pauses == 0 && !is_full(queue)) {
    const double now_s = seconds(queue.time);
    if (PyErr_Occurred() != nullptr) return nullptr;
    scan.decompressors = self->decompressors;
    scan.record = queue.record;
    scan.device_id = self->device_id;
    scan.epoch = self->epoch;
    scan.received_ms = PyLong_FromLongLong(static_cast<long long>(now_s * 1000));
    scan.due = self->due;
    scan.last_seq = self->acked + queue.window;
    scan.max_body_bytes = self->max_body_bytes;
    scan.has_versions = self->has_versions;
    scan.records = PyList_New(0);
    std::swap(self->topic, scan.topic);
    std::swap(self->version, scan.version);
    read_bytes =
        scan.received_ms == nullptr || scan.records == nullptr
            ? -1
            : scan.read(static_cast<const unsigned char*>(queue.buffer.buf), bytes, 0, queue.read_uploads, queue.read_bytes);
    Py_XDECREF(scan.received_ms);
    std::swap(self->topic, scan.topic);
    std::swap(self->version, scan.version);
    if (read_bytes < 0) return nullptr;
    if (PyList_GET_SIZE(scan.records) > 0) {
      self->due = scan.due;
      if (!push(self, scan.records)) return nullptr;
    }
    if (read_bytes == bytes) Py_RETURN_NONE;
  }
  PyObject* received = PySequence_GetSlice(queue.view, read_bytes, bytes);
  if (received == nullptr) return nullptr;
  PyObject* answer = PyObject_CallMethod(object, "on_bytes", "NO", received, scan.unpacked == nullptr ? Py_None : scan.unpacked);
  return answer;
}

// push(records): they are due
PyObject* receiver_push(PyObject* object, PyObject* records) {
  ReceiverObject* self = ready(object);
  if (self == nullptr) return nullptr;
  if (!PyList_Check(records)) return PyErr_Format(PyExc_TypeError, "push() takes a list, got %s", Py_TYPE(records)->tp_name);
  self->due += PyList_GET_SIZE(records);
  if (!push(self, records)) return nullptr;
  Py_RETURN_NONE;
}

// Writes data to the transport; returns None, or a null pointer with a Python error.
PyObject* write(ReceiverObject* self, PyObject* data) {
  ++self->written;
  self->queue->bytes_out += PyBytes_GET_SIZE(data);
  if (!is_set(self->write)) Py_RETURN_NONE;
  return PyObject_CallOneArg(self->write, data);
}

PyObject* receiver_send(PyObject* object, PyObject* data) {
  ReceiverObject* self = ready(object);
  if (self == nullptr) return nullptr;
  if (!PyBytes_Check(data)) return PyErr_Format(PyExc_TypeError, "send() takes bytes, got %s", Py_TYPE(data)->tp_name);
  return write(self, data);
}

PyObject* receiver_send_ack(PyObject* object, PyObject*) {
  ReceiverObject* self = ready(object);
  if (self == nullptr) return nullptr;
  self->owes_ack = !self->is_writable;
  if (self->owes_ack) Py_RETURN_NONE;
  unsigned char frame[] = {0, 0, 0, 8, kAckKind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int i = 0; i < 8; ++i) frame[8 + i] = static_cast<unsigned char>(static_cast<std::uint64_t>(self->acked) >> (56 - 8 * i));
  PyObject* data = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(frame), sizeof(frame));
  if (data == nullptr) return nullptr;
  PyObject* answer = write(self, data);
  Py_DECREF(data);
  return answer;
}

// acknowledge(seq): uploads up to it are stored
PyObject* receiver_acknowledge(PyObject* object, PyObject* argument) {
  ReceiverObject* self = receiver_of(object);
  const long long seq = PyLong_AsLongLong(argument);
  if (seq == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (seq <= self->acked || !self->is_open) Py_RETURN_NONE;
  self->acked = seq;
  // Uploads of the device's previous connection may become durable during this one: continue after those.
  if (seq >= self->due) self->due = seq + 1;
  return receiver_send_ack(object, nullptr);
}

// Whether an object has the layout of a receiver: its type or one of its bases is the type of receivers.
bool is_receiver(PyObject* object) {
  for (PyTypeObject* type = Py_TYPE(object); type != nullptr; type = type->tp_base)
    if (type->tp_dealloc == receiver_dealloc) return true;
  return false;
}

// acknowledge(receivers, highest)
PyObject* queue_acknowledge(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "acknowledge() takes a dict of receivers and the highest numbers");
    return nullptr;
  }
  PyObject* highest = PyDict_New();  // a copy, which no call below can change
  bool failed = highest == nullptr || PyDict_Update(highest, arguments[1]) < 0;
  Py_ssize_t at = 0;
  PyObject *key = nullptr, *seq = nullptr;
  while (!failed && PyDict_Next(highest, &at, &key, &seq)) {
    if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(key, 1))) {
      PyErr_SetString(PyExc_TypeError, "acknowledge(): a key is (device_id, epoch)");
      failed = true;
      break;
    }
    PyObject* receiver = PyDict_GetItemWithError(arguments[0], PyTuple_GET_ITEM(key, 0));
    if (receiver == nullptr) {
      failed = PyErr_Occurred() != nullptr;
      continue;
    }
    if (!is_receiver(receiver)) {
      PyErr_Format(PyExc_TypeError, "acknowledge(): %s is not an UploadReceiver", Py_TYPE(receiver)->tp_name);
      failed = true;
      break;
    }
    if (receiver_of(receiver)->epoch == nullptr || PyUnicode_Compare(receiver_of(receiver)->epoch, PyTuple_GET_ITEM(key, 1)) != 0)
      continue;
    Py_INCREF(receiver);
    PyObject* answer = receiver_acknowledge(receiver, seq);
    Py_DECREF(receiver);
    failed = answer == nullptr;
    Py_XDECREF(answer);
  }
  Py_XDECREF(highest);
  if (failed) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef receiver_methods[] = {{"open", receiver_open, METH_VARARGS, nullptr},
                                  {"get_buffer", receiver_get_buffer, METH_O, nullptr},
                                  {"buffer_updated", receiver_buffer_updated, METH_O, nullptr},
                                  {"push", receiver_push, METH_O, nullptr},
                                  {"send", receiver_send, METH_O, nullptr},
                                  {"send_ack", receiver_send_ack, METH_NOARGS, nullptr},
                                  {"acknowledge", receiver_acknowledge, METH_O, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
PyMemberDef receiver_members[] = {{"device_id", T_OBJECT, offsetof(ReceiverObject, device_id), READONLY, nullptr},
                                  {"epoch", T_OBJECT, offsetof(ReceiverObject, epoch), READONLY, nullptr},
                                  {"write", T_OBJECT, offsetof(ReceiverObject, write), 0, nullptr},
                                  {"buffered_bytes", T_PYSSIZET, offsetof(ReceiverObject, buffered_bytes), 0, nullptr},
                                  {"upload_bytes", T_PYSSIZET, offsetof(ReceiverObject, upload_bytes), READONLY, nullptr},
                                  {"due", T_LONGLONG, offsetof(ReceiverObject, due), READONLY, nullptr},
                                  {"acked", T_LONGLONG, offsetof(ReceiverObject, acked), READONLY, nullptr},
                                  {"written", T_LONGLONG, offsetof(ReceiverObject, written), READONLY, nullptr},
                                  {"pauses", T_INT, offsetof(ReceiverObject, pauses), 0, nullptr},
                                  {"is_open", T_BOOL, offsetof(ReceiverObject, is_open), 0, nullptr},
                                  {"is_writable", T_BOOL, offsetof(ReceiverObject, is_writable), 0, nullptr},
                                  {"has_sent", T_BOOL, offsetof(ReceiverObject, has_sent), 0, nullptr},
                                  {"owes_ack", T_BOOL, offsetof(ReceiverObject, owes_ack), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
PyType_Slot receiver_slots[] = {{Py_tp_init, reinterpret_cast<void*>(receiver_init)},
                                {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                                {Py_tp_traverse, reinterpret_cast<void*>(receiver_traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(receiver_clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(receiver_dealloc)},
                                {Py_tp_methods, receiver_methods},
                                {Py_tp_members, receiver_members},
                                {0, nullptr}};
PyType_Spec receiver_spec = {"walle.engine_ext._core.UploadReceiver", sizeof(ReceiverObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
                             receiver_slots};

}  // namespace

int add_upload_queue_types(PyObject* module) {
  for (PyType_Spec* spec : {&queue_spec, &receiver_spec}) {
    PyObject* type = PyType_FromSpec(spec);
    const int failed = type == nullptr ? -1 : PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
    Py_XDECREF(type);
    if (failed < 0) return -1;
  }
  return 0;
}

}  // namespace walle
