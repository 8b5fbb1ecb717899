#include "bindings/store/payload_pool.h"

#include <new>

namespace walle {

namespace {

std::size_t allocated_bytes(PyObject* payload) {
  return static_cast<std::size_t>(reinterpret_cast<PyByteArrayObject*>(payload)->ob_alloc) + sizeof(PyByteArrayObject);
}

}  // namespace

PayloadPool::~PayloadPool() {
  for (PyObject* payload : kept_) Py_DECREF(payload);
}

PyObject* PayloadPool::take(std::size_t size) {
  if (kept_.empty() || size > kMaxPayloadBytes) return PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  PyObject* payload = kept_.back();
  kept_.pop_back();
  kept_bytes_ -= allocated_bytes(payload);
  if (PyByteArray_Resize(payload, static_cast<Py_ssize_t>(size)) < 0) Py_CLEAR(payload);
  return payload;
}

void PayloadPool::give(PyObject* payload) noexcept {
  const std::size_t size_bytes = allocated_bytes(payload);
  if (Py_REFCNT(payload) == 1 && PyByteArray_GET_SIZE(payload) <= static_cast<Py_ssize_t>(kMaxPayloadBytes) &&
      kept_bytes_ + size_bytes <= kMaxKeptBytes) {
    try {
      kept_.push_back(payload);
      kept_bytes_ += size_bytes;
      return;
    } catch (const std::bad_alloc&) {  // no memory to keep the buffer
    }
  }
  Py_DECREF(payload);
}

}  // namespace walle
