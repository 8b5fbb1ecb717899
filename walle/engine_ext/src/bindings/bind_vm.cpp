// VMs and mailboxes for walle.engine_ext.vm.vm, and the VM-side door to the host. The asyncio side is Python; nothing here waits
// while it holds a GIL.
#include <poll.h>
#include <pybind11/stl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "bindings/bind.h"
#include "bindings/sealing.h"
#include "vm/birth.h"
#include "vm/home.h"
#include "vm/interpreter.h"
#include "vm/lending.h"
#include "vm/mailbox.h"

namespace py = pybind11;

namespace walle {

namespace {

// A contiguous copy in engine memory.
Tensor copy_of(const Tensor& source) {
  Tensor copy = Tensor::empty(source.dtype(), source.shape());
  if (copy.size() == 0) return copy;
  const std::size_t item = item_size(source.dtype());
  if (source.contiguous()) {
    std::memcpy(copy.raw(), source.raw(), item * static_cast<std::size_t>(copy.size()));
    return copy;
  }
  std::byte* target = copy.raw();
  Dims index(source.shape().size(), 0);
  for (std::int64_t done = 0; done < copy.size(); ++done, target += item) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis) offset += index[axis] * source.strides()[axis];
    std::memcpy(target, source.raw() + offset * static_cast<std::int64_t>(item), item);
    for (std::size_t axis = index.size(); axis-- > 0 && ++index[axis] == source.shape()[axis];) index[axis] = 0;
  }
  return copy;
}

// An array arrives as a Tensor; one leaves as the Tensor that it is or wraps, else by the buffer protocol. Memory that a VM's
// own Python objects hold would die with the VM, so it leaves as a copy; the main interpreter outlives every VM.
bool take_array(PyObject* object, Tensor& tensor) {
  const py::handle handle(object);
  if (is_ndarray(handle)) {
    tensor = handle.cast<Tensor&>();
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
  if (vm::Interpreter::here() != nullptr && vm::lent_here(tensor.storage().get())) tensor = copy_of(tensor);
  return true;
}

// As the receiver sees it. Two sides that write into the same memory would be no isolation, so that an array is read-only where
// it arrives; but a result that the task keeps no hold of is its receiver's alone.
Tensor received(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  if (!storage || !storage->writable()) return tensor;
  if (vm::Interpreter::here() == nullptr && storage.use_count() == 1) return tensor;
  return {vm::read_only(storage), tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset()};
}

PyObject* give_array(const Tensor& tensor) {
  try {
    return py::cast(received(tensor)).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

constexpr vm::ArrayPort kPort{take_array, give_array};

vm::Value read_value(py::handle object, const char* root) {
  try {
    return vm::from_python(object.ptr(), kPort, root);
  } catch (const vm::NotPlain& error) {
    throw py::type_error(error.what());
  }
}

py::object write_value(const vm::Value& value) {
  PyObject* object = vm::to_python(value, kPort);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

std::chrono::nanoseconds nanoseconds(double seconds) {
  constexpr double kLongest = 1e9;  // seconds: as good as for ever, and far from overflow
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, kLongest) * 1e9));
}

const char* outcome_name(vm::Outcome outcome) {
  switch (outcome) {
    case vm::Outcome::ok: return "ok";
    case vm::Outcome::failed: return "failed";
    case vm::Outcome::not_plain: return "not_plain";
    case vm::Outcome::deadline: return "deadline";
    case vm::Outcome::limit: return "limit";
    case vm::Outcome::cancelled: return "cancelled";
    case vm::Outcome::closed: return "closed";
    case vm::Outcome::ask: return "ask";
  }
  return "closed";
}

// What Python holds: dropping it closes the VM.
class VMHandle {
 public:
  VMHandle(const std::string& name, py::handle config, std::unordered_set<std::string> task_files, double grace,
           std::int64_t memory_bytes, std::int64_t output_bytes) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main())
      throw std::runtime_error("a VM can only be made by the main interpreter");
    vm::Settings settings{name,
                          read_value(config, "config"),
                          std::move(task_files),
                          std::chrono::duration_cast<std::chrono::milliseconds>(nanoseconds(grace)),
                          memory_bytes,
                          output_bytes};
    vm_ = vm::Interpreter::start(std::move(settings), kPort);
  }
  VMHandle(const VMHandle&) = delete;
  VMHandle& operator=(const VMHandle&) = delete;
  ~VMHandle() {
    if (vm_) vm_->close();
  }
  vm::Interpreter& vm() const { return *vm_; }

 private:
  std::shared_ptr<vm::Interpreter> vm_;
};

// Microseconds from submitting a call without arguments to having its result, for each of `count` calls in turn: what a caller in
// C++ sees that looks for the result, as a VM's thread does for a call, for a moment before it sleeps.
std::vector<double> round_trips(vm::Interpreter& vm, const std::string& function, int count) {
  const auto mailbox = std::make_shared<vm::Mailbox>();
  std::vector<double> times_us;
  for (int call = 1; call <= count; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    vm.submit(mailbox, static_cast<std::uint64_t>(call), function, {vm::Tuple{}}, std::nullopt);
    pollfd waiting{mailbox->fd(), POLLIN, 0};
    while (poll(&waiting, 1, 0) == 0 && std::chrono::steady_clock::now() < begin + vm::kAttentive) std::this_thread::yield();
    while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
    }
    for (const vm::Notice& notice : mailbox->take_all())
      if (notice.outcome != vm::Outcome::ok)
        throw std::runtime_error(std::string("the call ended with ") + outcome_name(notice.outcome));
    times_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  return times_us;
}

vm::Interpreter& vm_here() {
  vm::Interpreter* here = vm::Interpreter::here();
  if (here == nullptr) throw std::runtime_error("only code in a VM can ask for this");
  return *here;
}

// time.sleep for tasks: it ends when the call is stopped.
void sleep_here(double seconds) {
  if (!(seconds >= 0)) throw py::value_error("sleep length must be non-negative");
  if (!vm_here().sleep(nanoseconds(seconds))) throw py::error_already_set();
}

// A function that makes modules, which refuses some names. The original is held where no walk over Python objects finds it.
py::cpp_function guard(const py::object& original, const std::unordered_set<std::string>& names) {
  const py::object plain = py::type::of(py::module_::import("sys").attr("implementation"));  // SimpleNamespace
  if (PyObject_IS_GC(original.ptr()) && PyObject_GC_IsTracked(original.ptr())) PyObject_GC_UnTrack(original.ptr());
  return py::cpp_function([original, plain, names](const py::object& spec, const py::args& rest) {
    const auto name = spec.attr("name").cast<std::string>();
    if (!names.contains(name)) throw py::import_error(name + " cannot be loaded in a VM");
    // Not the caller's spec, whose attributes may be something else at the next look.
    const py::object origin = py::getattr(spec, "origin", py::none());
    if (!origin.is_none() && !py::type::of(origin).is(py::type::of(py::str())))
      throw py::import_error("the origin of " + name + " is no text");
    return original(plain(py::arg("name") = name, py::arg("origin") = origin), *rest);
  });
}

// Keeps what a failed import raised, which is the task's, from being taken for the module's: the collector does not know it
// for so long. Its traceback goes, and so does what is left of modules that were loaded half.
class HiddenError {
 public:
  explicit HiddenError(PyObject* error) {
    if (error == nullptr) return;
    PyException_SetTraceback(error, Py_None);
    PyException_SetContext(error, nullptr);
    PyException_SetCause(error, nullptr);
    PyGC_Collect();
    hide(Py_NewRef(error));
    hide(PyException_GetArgs(error));
  }
  ~HiddenError() {
    for (PyObject* object : hidden_) {
      PyObject_GC_Track(object);
      Py_DECREF(object);
    }
  }
  HiddenError(const HiddenError&) = delete;
  HiddenError& operator=(const HiddenError&) = delete;

 private:
  void hide(PyObject* object) {  // takes the reference
    if (!PyObject_IS_GC(object) || !PyObject_GC_IsTracked(object)) return Py_DECREF(object);
    PyObject_GC_UnTrack(object);
    hidden_.push_back(object);
  }

  std::vector<PyObject*> hidden_;
};

// One function for all that happens between the two looks at what is there: what a task made in between would stay too.
py::cpp_function loader(const py::object& loaded) {
  return py::cpp_function([loaded](const py::str& name) {
    vm::Pristine& pristine = vm_here().home().pristine;
    pristine.before_import();
    PyObject* module = PyImport_Import(name.ptr());
    PyObject* done = module != nullptr ? PyObject_CallNoArgs(loaded.ptr()) : nullptr;
    PyObject* error = PyErr_GetRaisedException();
    {
      const HiddenError hidden(error);
      pristine.after_import();
    }
    Py_XDECREF(module);
    Py_XDECREF(done);
    PyErr_SetRaisedException(error);
    if (error != nullptr) throw py::error_already_set();
  });
}

// sys.unraisablehook of VMs. In C, because a Stopped that arrived in a hook in Python would be told of in turn.
void tell_unraisable(const py::object& found) {
  vm::Interpreter* here = vm::Interpreter::here();
  if (here != nullptr && found.attr("exc_type").ptr() == here->home().stopped) return;
  // Not by an import, which would be the task's own while its code runs.
  if (PyObject* tell = PySys_GetObject("__unraisablehook__")) py::reinterpret_borrow<py::object>(tell)(found);
}

// The bytes of an open file, read-only. In place of Python's mmap, with which a task could take memory that nobody counts.
py::object map_file(int descriptor) {
  struct stat status{};
  const auto size = fstat(descriptor, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);  // not of an empty file
  if (address == MAP_FAILED) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }
  auto storage = Storage::borrow(static_cast<std::byte*>(address), size, false, [address, size] { munmap(address, size); });
  const py::object array = py::cast(Tensor(std::move(storage), DType::u8, {static_cast<std::int64_t>(size)}, {1}, 0));
  PyObject* view = PyMemoryView_FromObject(array.ptr());
  if (view == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(view);
}

py::list drain(vm::Mailbox& mailbox) {
  vm::Lender::current()->drain();
  py::list notices;
  for (vm::Notice& notice : mailbox.take_all()) {
    py::object value = py::none();
    std::string text = std::move(notice.text);
    vm::Outcome outcome = notice.outcome;
    try {
      value = write_value(notice.value);
    } catch (py::error_already_set& error) {  // no memory for it: that call fails, not its neighbours
      outcome = vm::Outcome::not_plain;
      text = std::string("the result could not be received: ") + error.what();
    }
    notices.append(py::make_tuple(
        notice.call_id, outcome_name(outcome), std::move(value),
        py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"))));
  }
  return notices;
}

py::tuple ask_host(const py::str& name, const py::tuple& arguments) {
  vm::Interpreter* here = vm::Interpreter::here();
  if (here == nullptr) throw std::runtime_error("only code in a VM has a host to call");
  bool is_error = false;
  PyObject* answer = here->ask(name.ptr(), arguments.ptr(), is_error);
  if (answer == nullptr) throw py::error_already_set();
  return py::make_tuple(is_error, py::reinterpret_steal<py::object>(answer));
}

// Stopped(BaseException): raised in a call from outside. Made in C, so that making it runs no Python code.
PyObject* make_stopped() {
  static constexpr auto init = [](PyObject* self, PyObject* args, PyObject* keywords) -> int {
    if (reinterpret_cast<PyTypeObject*>(PyExc_BaseException)->tp_init(self, args, keywords) != 0) return -1;
    if (vm::Interpreter* here = vm::Interpreter::here()) here->raise_again();
    return 0;
  };
  PyType_Slot slots[] = {
      {Py_tp_init, reinterpret_cast<void*>(+init)},
      {Py_tp_doc, const_cast<char*>("Raised in a call from outside: its time is up, its caller is gone, or the VM "
                                    "was closed.")},
      {0, nullptr}};
  PyType_Spec spec{"walle.engine_ext._core.Stopped", 0, 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpecWithBases(&spec, PyExc_BaseException);
  if (type == nullptr) throw py::error_already_set();
  return type;
}

}  // namespace

void bind_vm(py::module_& module) {
  py::class_<vm::Mailbox, std::shared_ptr<vm::Mailbox>>(module, "Mailbox")
      .def(py::init<>())
      .def_property_readonly("fd", &vm::Mailbox::fd)
      .def("drain", &drain, "Notices so far: (call id, outcome, value, text).");

  py::class_<VMHandle>(module, "VM")
      .def(py::init<const std::string&, py::handle, std::unordered_set<std::string>, double, std::int64_t, std::int64_t>(),
           py::arg("name"), py::arg("config"), py::arg("task_files"), py::arg("grace"), py::arg("memory_bytes"),
           py::arg("output_bytes"))
      .def("submit",
           [](const VMHandle& self, std::shared_ptr<vm::Mailbox> mailbox, std::uint64_t call_id, const std::string& function,
              const py::tuple& arguments, std::optional<double> deadline) {
             std::optional<std::chrono::nanoseconds> limit;
             if (deadline) limit = nanoseconds(*deadline);
             self.vm().submit(std::move(mailbox), call_id, function, read_value(arguments, "args"), limit);
           })
      .def("round_trips",
           [](const VMHandle& self, const std::string& function, int count) {
             const py::gil_scoped_release release;
             return round_trips(self.vm(), function, count);
           })
      .def("cancel", [](const VMHandle& self, std::uint64_t call_id) { self.vm().cancel(call_id); })
      .def("answer", [](const VMHandle& self, std::uint64_t call_id, py::handle value,
                        bool is_error) { self.vm().answer(call_id, read_value(value, "answer"), is_error); })
      .def("close", [](const VMHandle& self) { self.vm().close(); })
      .def("join",
           [](const VMHandle& self, double timeout) {
             const py::gil_scoped_release release;
             return self.vm().join(nanoseconds(timeout));
           })
      .def_property_readonly("alive", [](const VMHandle& self) { return self.vm().alive(); })
      .def_property_readonly("abandoned", [](const VMHandle& self) { return self.vm().was_given_up(); })
      .def_property_readonly("spoilt", [](const VMHandle& self) { return self.vm().spoilt(); })
      .def_property_readonly("lost_bytes", [](const VMHandle& self) { return self.vm().lost_bytes(); })
      .def_property_readonly("calls", [](const VMHandle& self) { return self.vm().calls(); })
      .def_property_readonly("create_ms", [](const VMHandle& self) { return self.vm().create_ms(); });

  module.attr("Stopped") = py::reinterpret_steal<py::object>(make_stopped());
  module.def("vm_set_empty_site", [](const py::bytes& code) { vm::set_empty_site(code); });
  module.def("vm_set_boot", [](const py::bytes& code, py::handle paths) {
    vm::Home::set_boot({std::string(code), read_value(paths, "paths")}, kPort);
  });
  module.def("vm_carry", [](const py::dict& modules) {
    for (const auto& [name, found] : modules) vm::Home::carry(py::cast<std::string>(name), read_value(found, "module"));
  });
  module.def("vm_counts", [] {
    const vm::HomeCounts counts = vm::Home::counts();
    py::dict all;
    all["made"] = counts.made;
    all["lived_in"] = counts.lived_in;
    all["recycled"] = counts.recycled;
    all["destroyed"] = counts.destroyed;
    all["threads"] = counts.threads;
    all["spare"] = counts.spare;
    all["last_reason"] = counts.last_reason;
    return all;
  });
  module.def("vm_loader", &loader, "load(name): load a module that is to stay, and call `loaded`; in a VM.");
  module.def(
      "vm_pristine",
      [] {
        vm::Pristine& pristine = vm_here().home().pristine;
        return py::make_tuple(pristine.size(), pristine.bytes());
      },
      "(objects, bytes) that the present VM's home keeps to be wiped; in a VM.");
  module.def("vm_sleep", &sleep_here, "time.sleep that ends when the call is stopped; in a VM.");
  module.def(
      "vm_break_limit",
      [](const std::string& limit) {
        vm_here().break_limit(limit);
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      },
      "Stops the running call for a limit that it broke: raises Stopped.");
  module.def(
      "vm_rest",
      [](const py::args&) {
        if (vm::Interpreter* here = vm::Interpreter::here()) here->rest_if_given_up();
      },
      "In gc.callbacks of a VM.");
  module.def("vm_seal", [module] { seal_types(module); }, "Close the module's types to tasks.");
  module.def("vm_unraisable", &tell_unraisable);
  module.def("map_file", &map_file, py::arg("descriptor"), "The bytes of an open file, read-only, without a copy.");
  module.def("vm_guard", &guard, "A function like `original` of _imp that refuses specs of other names.");
  module.def("vm_watch_memory", &vm::Heap::watch, "Count what VMs' Python objects take, from now on.");
  module.def("vm_lost", &vm::Interpreter::lost, "VM threads that rest for good in C calls that never end.");
  module.def(
      "vm_used_bytes", [] { return vm_here().used_bytes(); },
      "Bytes of Python objects and engine memory that the present VM took.");
  module.def("vm_abandoned", &vm::Interpreter::abandoned, "Abandoned VM threads that are still busy.");
  module.def("vm_shut_down", [](double timeout) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) throw py::type_error("a VM cannot shut VMs down");
    const py::gil_scoped_release release;
    return vm::Interpreter::shut_down(nanoseconds(timeout));
  });
  module.def("ask_host", &ask_host, "(is_error, answer) of the caller's side; only in a VM.");
}

}  // namespace walle
