#include "bindings/tunnel/upload_queue.h"

#include <structmember.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include "bindings/tunnel/turns.h"
#include "bindings/tunnel/upload_scan.h"

namespace walle {

namespace {

constexpr unsigned char kAckKind = 4;  // kind of an Ack frame (docs/protocol.md)
constexpr Py_ssize_t kRowBytes = 100;  // cost of an upload in a turn beside its bytes, as in a device's quota

struct ReceiverObject;
struct DeviceFlow;

// One upload on its way to the store; owns its references.
struct QueuedUpload {
  PyObject* record;
  ReceiverObject* receiver;
  DeviceFlow* flow;
  Py_ssize_t size_bytes;
  double queued_s;
};

using Turns = DeficitRoundRobin<QueuedUpload>;

// The uploads of one device, of all its connections.
struct DeviceFlow : Turns::Flow {
  std::string device_id;
  Py_ssize_t size_bytes = 0;          // uploads that wait, and those that were taken
  Py_ssize_t users = 0;               // uploads and receivers that name it
  ReceiverObject* bounded = nullptr;  // the receiver that was called `on_bound`, until it may continue
};

struct QueueObject {
  PyObject_HEAD PyTypeObject* record;
  PyObject* view;  // view of `buffer`
  Py_buffer buffer;
  PyObject* time;
  PyObject* monotonic;
  PyObject* on_arrival;  // called once at the next upload, and then removed; or null
  Py_ssize_t max_uploads, max_bytes, receiver_bytes, window, read_uploads, read_bytes, least_uploads, least_bytes;
  Py_ssize_t held_bytes;
  long long uploads, bytes_in, bytes_out;  // counted since the beginning
  double waited_s;                         // sum over all uploads that were taken
  Turns* waiting;
  std::deque<QueuedUpload>* taken;
  std::unordered_map<std::string, DeviceFlow>* flows;  // by device
  std::deque<ReceiverObject*>* resumable;              // owned; for `resumable`
};

struct ReceiverObject {
  PyObject_HEAD QueueObject* queue;
  PyObject* device_id;
  PyObject* epoch;
  PyObject* decompressors;  // a dict; null before `open`
  PyObject* topic;          // topic of the latest upload, or null
  PyObject* version;        // version of the latest upload's task, or null
  PyObject* write;          // the transport's method
  DeviceFlow* flow;         // null before the first upload and `open`
  Py_ssize_t max_body_bytes;
  Py_ssize_t buffered_bytes;
  long long due;
  long long acked;
  long long written;
  long long received_bytes;  // counted since the beginning
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

// Ends the use of a flow by an upload or a receiver.
void leave(QueueObject& queue, DeviceFlow* flow) {
  if (--flow->users == 0) queue.flows->erase(flow->device_id);
}

void release(QueueObject& queue, QueuedUpload& upload) {
  leave(queue, upload.flow);
  Py_DECREF(upload.record);
  Py_DECREF(reinterpret_cast<PyObject*>(upload.receiver));
}

// Makes a receiver part of its device's flow; returns false with a Python error.
bool join(ReceiverObject* self) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(self->device_id, &size);
  if (text == nullptr) return false;
  DeviceFlow* joined = nullptr;
  try {
    std::string id(text, static_cast<std::size_t>(size));
    joined = &(*self->queue->flows)[id];
    if (joined->users == 0) joined->device_id = std::move(id);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory(), false;
  }
  ++joined->users;
  DeviceFlow* former = self->flow;
  self->flow = joined;
  if (former != nullptr) {
    if (former->bounded == self) former->bounded = nullptr;
    leave(*self->queue, former);
  }
  return true;
}

PyObject* queue_acknowledge(PyObject*, PyObject* const* arguments, Py_ssize_t count);

// --- the queue ---

// The last eighth is for devices that send little: `has_room` is for those that had to wait.
Py_ssize_t kept_uploads(const QueueObject& queue) { return queue.max_uploads / 8; }
Py_ssize_t kept_bytes(const QueueObject& queue) { return queue.max_bytes / 8; }

bool has_room(const QueueObject& queue) {
  return static_cast<Py_ssize_t>(queue.waiting->size()) < queue.max_uploads - kept_uploads(queue) &&
         queue.held_bytes < queue.max_bytes - kept_bytes(queue);
}

bool is_full(const QueueObject& queue) {
  return static_cast<Py_ssize_t>(queue.waiting->size()) >= queue.max_uploads || queue.held_bytes >= queue.max_bytes;
}

// The uploads and bytes of one device that are the bound now.
struct Bound {
  Py_ssize_t uploads, size_bytes;
};

constexpr Py_ssize_t kKeptParts = 64;

// Returns as much as there is room for more, so that n devices which always have more each get an equal part, and leave one for a
// further device; at least `least`; in the part that is kept for devices that send little, a small part of what is left of it.
Py_ssize_t part(Py_ssize_t used, Py_ssize_t most, Py_ssize_t kept, Py_ssize_t least) {
  return used < most - kept ? std::max(least, most - kept - used) : 1 + (most - used) / kKeptParts;
}

// All is one device's where no other waits.
Bound bound_of(const QueueObject& queue, const DeviceFlow& flow) {
  if (queue.waiting->flows() <= (flow.size() > 0 ? 1 : 0)) return {queue.max_uploads, queue.receiver_bytes};
  const auto waiting = static_cast<Py_ssize_t>(queue.waiting->size());
  const Py_ssize_t size_bytes = part(queue.held_bytes, queue.max_bytes, kept_bytes(queue), queue.least_bytes);
  return {part(waiting, queue.max_uploads, kept_uploads(queue), queue.least_uploads), std::min(queue.receiver_bytes, size_bytes)};
}

// How much of one read of a device may enter the queue; an upload of any size may.
Bound room_of(const QueueObject& queue, const DeviceFlow& flow) {
  const Bound bound = bound_of(queue, flow);
  const Py_ssize_t uploads = std::min(queue.read_uploads, bound.uploads - static_cast<Py_ssize_t>(flow.size()));
  const Py_ssize_t size_bytes = std::min(queue.read_bytes, bound.size_bytes - flow.size_bytes);
  return {std::max<Py_ssize_t>(1, uploads), std::max<Py_ssize_t>(1, size_bytes)};
}

bool is_bounded(const QueueObject& queue, const DeviceFlow& flow) {
  const Bound bound = bound_of(queue, flow);
  return is_full(queue) || static_cast<Py_ssize_t>(flow.size()) >= bound.uploads || flow.size_bytes >= bound.size_bytes;
}

// Whether a receiver of the flow may continue: below half of the bound, so that it is not called for each upload.
bool may_resume(const QueueObject& queue, const DeviceFlow& flow) {
  if (flow.size_bytes == 0) return true;
  const Bound bound = bound_of(queue, flow);
  return static_cast<Py_ssize_t>(flow.size()) * 2 <= bound.uploads && flow.size_bytes * 2 <= bound.size_bytes;
}

// Notes that the receiver which waits for the flow may continue, if it may. Without memory that is noted the next time.
void note_resumable(QueueObject& queue, DeviceFlow& flow) noexcept {
  if (flow.bounded == nullptr || !may_resume(queue, flow)) return;
  try {
    queue.resumable->push_back(flow.bounded);
  } catch (const std::bad_alloc&) {
    return;
  }
  Py_INCREF(reinterpret_cast<PyObject*>(flow.bounded));
  flow.bounded = nullptr;
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
  if (self->flow == nullptr && !join(self)) return false;
  DeviceFlow& flow = *self->flow;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(records); ++i) {
    PyObject* record = PyList_GET_ITEM(records, i);
    if (Py_TYPE(record) != queue.record || PyTuple_GET_SIZE(record) != kRecordFields)
      return PyErr_SetString(PyExc_TypeError, "an upload is not a record of the queue"), false;
    const Py_ssize_t size_bytes = size_of(record);
    if (size_bytes < 0) return false;
    try {
      queue.waiting->push(flow, {record, self, &flow, size_bytes, now_s}, size_bytes + kRowBytes);
    } catch (const std::bad_alloc&) {
      return PyErr_NoMemory(), false;
    }
    Py_INCREF(record);
    Py_INCREF(reinterpret_cast<PyObject*>(self));
    ++flow.users;
    queue.held_bytes += size_bytes;
    flow.size_bytes += size_bytes;
    ++queue.uploads;
  }
  if (PyObject* on_arrival = queue.on_arrival; is_set(on_arrival)) {
    queue.on_arrival = nullptr;
    PyObject* answer = PyObject_CallNoArgs(on_arrival);
    Py_DECREF(on_arrival);
    if (answer == nullptr) return false;
    Py_DECREF(answer);
  }
  if (is_bounded(queue, flow)) {
    flow.bounded = self;
    PyObject* answer = PyObject_CallMethod(reinterpret_cast<PyObject*>(self), "on_bound", nullptr);
    if (answer == nullptr) return false;
    Py_DECREF(answer);
  }
  return true;
}

PyObject* queue_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* const kNames[] = {"record",        "buffer",         "time",       "monotonic",    "uploads",
                                       "size_bytes",    "receiver_bytes", "window",     "read_uploads", "read_bytes",
                                       "least_uploads", "least_bytes",    "turn_bytes", nullptr};
  Py_ssize_t turn_bytes = 1;
  QueueObject read{};
  PyObject* record = nullptr;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OOO$nnnnnnnnn", const_cast<char**>(kNames), &PyType_Type, &record,
                                   &read.view, &read.time, &read.monotonic, &read.max_uploads, &read.max_bytes,
                                   &read.receiver_bytes, &read.window, &read.read_uploads, &read.read_bytes, &read.least_uploads,
                                   &read.least_bytes, &turn_bytes))
    return nullptr;
  read.record = reinterpret_cast<PyTypeObject*>(record);
  if (!PyType_IsSubtype(read.record, &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "UploadQueue: record must be a subclass of tuple");
    return nullptr;
  }
  if (turn_bytes < 1) return PyErr_Format(PyExc_ValueError, "UploadQueue: turn_bytes is %zd, at least 1 is needed", turn_bytes);
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) return nullptr;
  QueueObject* self = queue_of(made);
  self->waiting = new (std::nothrow) Turns(turn_bytes);
  self->taken = new (std::nothrow) std::deque<QueuedUpload>;
  self->flows = new (std::nothrow) std::unordered_map<std::string, DeviceFlow>;
  self->resumable = new (std::nothrow) std::deque<ReceiverObject*>;
  self->view = PyMemoryView_FromObject(read.view);
  if (self->waiting == nullptr || self->taken == nullptr || self->flows == nullptr || self->resumable == nullptr)
    PyErr_NoMemory();
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
  self->least_uploads = read.least_uploads;
  self->least_bytes = read.least_bytes;
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
  const auto visit_upload = [&](const QueuedUpload& upload) {
    Py_VISIT(upload.record);
    Py_VISIT(reinterpret_cast<PyObject*>(upload.receiver));
    return 0;
  };
  if (self->waiting != nullptr)
    if (const int result = self->waiting->each(visit_upload); result != 0) return result;
  if (self->taken != nullptr)
    for (const QueuedUpload& upload : *self->taken)
      if (const int result = visit_upload(upload); result != 0) return result;
  if (self->resumable != nullptr)
    for (ReceiverObject* receiver : *self->resumable) Py_VISIT(reinterpret_cast<PyObject*>(receiver));
  return 0;
}

// Only what may be part of a cycle; the rest is in use until the end.
int queue_clear(PyObject* object) {
  QueueObject* self = queue_of(object);
  Py_CLEAR(self->on_arrival);
  if (self->waiting != nullptr) self->waiting->clear([&](QueuedUpload& upload) { release(*self, upload); });
  if (self->taken != nullptr) {
    std::deque<QueuedUpload> cleared;
    cleared.swap(*self->taken);
    for (QueuedUpload& upload : cleared) release(*self, upload);
  }
  if (self->resumable != nullptr) {
    std::deque<ReceiverObject*> cleared;
    cleared.swap(*self->resumable);
    for (ReceiverObject* receiver : cleared) Py_DECREF(reinterpret_cast<PyObject*>(receiver));
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
  delete self->flows;
  delete self->resumable;
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
PyObject* queue_has_room(PyObject* self, void*) { return PyBool_FromLong(has_room(*queue_of(self))); }

// Cost: the number of devices whose uploads wait.
PyObject* queue_oldest_s(PyObject* object, void*) {
  QueueObject* self = queue_of(object);
  const QueuedUpload* oldest = nullptr;
  const auto note = [&](const QueuedUpload& upload) {
    if (oldest == nullptr || upload.queued_s < oldest->queued_s) oldest = &upload;
  };
  for (const QueuedUpload& upload : *self->taken) note(upload);
  self->waiting->each_first(note);
  if (oldest == nullptr) Py_RETURN_NONE;
  return PyFloat_FromDouble(oldest->queued_s);
}

PyObject* queue_devices(PyObject* self, void*) { return PyLong_FromSize_t(queue_of(self)->waiting->flows()); }

// take(limit) -> list of records
PyObject* queue_take(PyObject* object, PyObject* argument) {
  QueueObject* self = queue_of(object);
  const Py_ssize_t limit = PyLong_AsSsize_t(argument);
  if (limit == -1 && PyErr_Occurred() != nullptr) return nullptr;
  const double now_s = seconds(self->monotonic);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const auto waiting = static_cast<Py_ssize_t>(self->waiting->size());
  const Py_ssize_t count = limit < waiting ? limit : waiting;
  PyObject* records = PyList_New(count < 0 ? 0 : count);
  if (records == nullptr) return nullptr;
  Py_ssize_t i = 0;
  try {
    for (; i < count; ++i) {
      self->taken->emplace_back();
      QueuedUpload& upload = self->taken->back();
      self->waiting->pop(upload);
      self->waited_s += now_s - upload.queued_s;
      PyList_SET_ITEM(records, i, Py_NewRef(upload.record));
      note_resumable(*self, *upload.flow);
    }
  } catch (const std::bad_alloc&) {
    if (i > 0 && PyList_SetSlice(records, i, count, nullptr) == 0) return records;
    Py_DECREF(records);
    return PyErr_NoMemory();
  }
  return records;
}

PyObject* queue_put_back(PyObject* object, PyObject*) {
  QueueObject* self = queue_of(object);
  try {
    while (!self->taken->empty()) {
      const QueuedUpload& upload = self->taken->back();
      self->waiting->put_back(*upload.flow, upload, upload.size_bytes + kRowBytes);
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
    upload.flow->size_bytes -= upload.size_bytes;
    note_resumable(*self, *upload.flow);
    release(*self, upload);
  }
  Py_RETURN_NONE;
}

// resumable() -> list of receivers
PyObject* queue_resumable(PyObject* object, PyObject*) {
  QueueObject* self = queue_of(object);
  PyObject* receivers = PyList_New(static_cast<Py_ssize_t>(self->resumable->size()));
  if (receivers == nullptr) return nullptr;
  for (Py_ssize_t i = 0; !self->resumable->empty(); ++i) {
    PyList_SET_ITEM(receivers, i, reinterpret_cast<PyObject*>(self->resumable->front()));
    self->resumable->pop_front();
  }
  return receivers;
}

PyMethodDef queue_methods[] = {{"take", queue_take, METH_O, nullptr},
                               {"put_back", queue_put_back, METH_NOARGS, nullptr},
                               {"release", queue_release, METH_NOARGS, nullptr},
                               {"resumable", queue_resumable, METH_NOARGS, nullptr},
                               {"acknowledge", as_method(queue_acknowledge), METH_FASTCALL, nullptr},
                               {nullptr, nullptr, 0, nullptr}};
PyMemberDef queue_members[] = {{"on_arrival", T_OBJECT, offsetof(QueueObject, on_arrival), 0, nullptr},
                               {"held_bytes", T_PYSSIZET, offsetof(QueueObject, held_bytes), READONLY, nullptr},
                               {"uploads", T_LONGLONG, offsetof(QueueObject, uploads), READONLY, nullptr},
                               {"bytes_in", T_LONGLONG, offsetof(QueueObject, bytes_in), READONLY, nullptr},
                               {"bytes_out", T_LONGLONG, offsetof(QueueObject, bytes_out), READONLY, nullptr},
                               {"waited_s", T_DOUBLE, offsetof(QueueObject, waited_s), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef queue_properties[] = {{"is_full", queue_is_full, nullptr, nullptr, nullptr},
                                  {"has_room", queue_has_room, nullptr, nullptr, nullptr},
                                  {"oldest_s", queue_oldest_s, nullptr, nullptr, nullptr},
                                  {"devices", queue_devices, nullptr, nullptr, nullptr},
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
  if (self->flow != nullptr) {
    if (self->flow->bounded == self) self->flow->bounded = nullptr;
    leave(*self->queue, self->flow);
  }
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
  if (!join(self)) return nullptr;
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
  self->received_bytes += bytes;
  self->has_sent = 1;
  UploadScan scan;
  Py_ssize_t read_bytes = 0;
  // Most reads are whole uploads that are due, and nothing else. Not more are queued than the device's bound has room for.
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
    const Bound room = room_of(queue, *self->flow);
    std::swap(self->topic, scan.topic);
    std::swap(self->version, scan.version);
    read_bytes = scan.received_ms == nullptr || scan.records == nullptr
                     ? -1
                     : scan.read(static_cast<const unsigned char*>(queue.buffer.buf), bytes, 0, room.uploads, room.size_bytes);
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

PyObject* receiver_upload_bytes(PyObject* object, void*) {
  const ReceiverObject* self = ready(object);
  if (self == nullptr) return nullptr;
  return PyLong_FromSsize_t(self->flow == nullptr ? 0 : self->flow->size_bytes);
}

// room -> (uploads, bytes)
PyObject* receiver_room(PyObject* object, void*) {
  const ReceiverObject* self = ready(object);
  if (self == nullptr) return nullptr;
  if (self->flow == nullptr) return Py_BuildValue("nn", self->queue->read_uploads, self->queue->read_bytes);
  const Bound room = room_of(*self->queue, *self->flow);
  return Py_BuildValue("nn", room.uploads, room.size_bytes);
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
                                  {"due", T_LONGLONG, offsetof(ReceiverObject, due), READONLY, nullptr},
                                  {"acked", T_LONGLONG, offsetof(ReceiverObject, acked), READONLY, nullptr},
                                  {"written", T_LONGLONG, offsetof(ReceiverObject, written), READONLY, nullptr},
                                  {"received_bytes", T_LONGLONG, offsetof(ReceiverObject, received_bytes), READONLY, nullptr},
                                  {"pauses", T_INT, offsetof(ReceiverObject, pauses), 0, nullptr},
                                  {"is_open", T_BOOL, offsetof(ReceiverObject, is_open), 0, nullptr},
                                  {"is_writable", T_BOOL, offsetof(ReceiverObject, is_writable), 0, nullptr},
                                  {"has_sent", T_BOOL, offsetof(ReceiverObject, has_sent), 0, nullptr},
                                  {"owes_ack", T_BOOL, offsetof(ReceiverObject, owes_ack), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef receiver_properties[] = {{"upload_bytes", receiver_upload_bytes, nullptr, nullptr, nullptr},
                                     {"room", receiver_room, nullptr, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot receiver_slots[] = {{Py_tp_init, reinterpret_cast<void*>(receiver_init)},
                                {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                                {Py_tp_traverse, reinterpret_cast<void*>(receiver_traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(receiver_clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(receiver_dealloc)},
                                {Py_tp_methods, receiver_methods},
                                {Py_tp_members, receiver_members},
                                {Py_tp_getset, receiver_properties},
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
