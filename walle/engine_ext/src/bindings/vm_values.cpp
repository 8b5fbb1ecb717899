#include "bindings/vm_values.h"

#include <algorithm>

#include "bindings/bind.h"
#include "bindings/stream/encoded.h"
#include "core/work_context.h"
#include "stream/event_batch.h"
#include "stream/packed.h"
#include "stream/packed_writer.h"
#include "vm/array_loans.h"
#include "vm/contiguous.h"
#include "vm/task_vm.h"

namespace py = pybind11;

namespace walle {

namespace {

// Memory that a VM's own Python objects own would be freed with the VM, so it leaves as a copy. The main interpreter outlives
// every VM.
bool to_tensor(PyObject* object, Tensor& tensor) {
  const py::handle handle(object);
  if (is_ndarray(handle)) {
    tensor = tensor_of(handle);
  } else if (PyObject_CheckBuffer(object)) {
    try {
      tensor = tensor_from_buffer(handle);
    } catch (py::error_already_set& error) {
      error.restore();
      return false;
    }
  } else {
    return false;
  }
  if (vm::TaskVm::current() != nullptr && vm::is_loaned_here(tensor.storage().get())) tensor = vm::contiguous_copy(tensor);
  return true;
}

// Returns a read-only storage over the same memory, which counts towards this thread's VM while the VM holds it: a task could
// otherwise keep the arrays of all its calls. Throws std::bad_alloc beyond the VM's limit.
std::shared_ptr<Storage> held_by_vm(const std::shared_ptr<Storage>& storage) {
  const std::shared_ptr<WorkContext> context = current_work_context();
  if (context == nullptr) return vm::read_only(storage);
  const auto bytes = static_cast<std::int64_t>(storage->size_bytes());
  if (!context->may_allocate(bytes)) throw std::bad_alloc();
  context->engine_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return Storage::borrow(storage->data(), storage->size_bytes(), false,
                         [storage, context, bytes] { context->engine_bytes.fetch_sub(bytes, std::memory_order_relaxed); });
}

// Returns the array as its receiver gets it: read-only, because two tasks could otherwise write to the same memory. A result to
// which the task keeps no reference belongs to its receiver alone and stays writable.
Tensor received(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  const bool is_in_vm = vm::TaskVm::current() != nullptr;
  if (!storage || (!is_in_vm && (!storage->writable() || storage.use_count() == 1))) return tensor;
  auto own = is_in_vm ? held_by_vm(storage) : vm::read_only(storage);
  return {std::move(own), tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset()};
}

PyObject* to_object(const Tensor& tensor) {
  try {
    return new_array(received(tensor));
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

bool to_encoded(PyObject* object, vm::Encoded& encoded) {
  const Encoded* found = as_encoded(object);
  if (found == nullptr) return false;
  encoded = {std::string(PyBytes_AS_STRING(found->bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(found->bytes))),
             found->depth};
  return true;
}

PyObject* encoded_to_object(const vm::Encoded& encoded) { return new_encoded_here(encoded.data, encoded.depth); }

vm::Encoded check_encoded(std::string_view bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  stream::PackedReader reader(data, bytes.size());
  stream::PackedWriter writer;
  try {
    writer.copy(reader, data);
  } catch (const stream::EventFault& fault) {
    throw vm::NotPlain("has an encoded value that is not plain data: it " + fault.what);
  }
  if (reader.left() > 0) throw vm::NotPlain("has an encoded value with bytes after it");
  return {std::string(writer.bytes()), writer.depth()};
}

}  // namespace

constinit const vm::ArrayPort kArrayPort{to_tensor, to_object, to_encoded, encoded_to_object, check_encoded};

vm::Value read_value(py::handle object, const char* root) {
  try {
    return vm::from_python(object.ptr(), kArrayPort, root);
  } catch (const vm::NotPlain& error) {
    throw py::type_error(error.what());
  }
}

py::object write_value(const vm::Value& value) {
  PyObject* object = vm::to_python(value, kArrayPort);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::str decode_text(std::string_view utf8) {
  PyObject* text = PyUnicode_DecodeUTF8(utf8.data(), static_cast<py::ssize_t>(utf8.size()), "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

std::chrono::nanoseconds nanoseconds(double seconds) {
  constexpr double kLongest = 1e9;  // seconds: practically unlimited, and far from overflow
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, kLongest) * 1e9));
}

}  // namespace walle
