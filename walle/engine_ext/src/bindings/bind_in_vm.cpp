// Functions that code in a VM calls: sleep, limits, imports that stay for later tasks, callbacks, and protection of the process.
#include <pybind11/stl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <unordered_set>

#include "bindings/protect_types.h"
#include "bindings/vm_values.h"
#include "vm/interpreter.h"
#include "vm/task_vm.h"

namespace py = pybind11;

namespace walle {

namespace {

vm::TaskVm& current_vm() {
  vm::TaskVm* found = vm::TaskVm::current();
  if (found == nullptr) throw std::runtime_error("this function can only be called in a VM");
  return *found;
}

// time.sleep for tasks, which ends when the call is stopped.
void sleep(double seconds) {
  if (!(seconds >= 0)) throw py::value_error("sleep length must be non-negative");
  if (!current_vm().sleep(nanoseconds(seconds))) throw py::error_already_set();
}

// Returns a function that creates modules, as `original` of _imp does, but only those of the given names. The original is held
// where no walk over Python objects finds it.
py::cpp_function restrict_loader(const py::object& original, const std::unordered_set<std::string>& names) {
  const py::object plain = py::type::of(py::module_::import("sys").attr("implementation"));  // SimpleNamespace
  if (PyObject_IS_GC(original.ptr()) && PyObject_GC_IsTracked(original.ptr())) PyObject_GC_UnTrack(original.ptr());
  return py::cpp_function([original, plain, names](const py::object& spec, const py::args& rest) {
    const auto name = spec.attr("name").cast<std::string>();
    if (!names.contains(name)) throw py::import_error(name + " cannot be loaded in a VM");
    // Not the caller's spec, whose attributes may have other values when they are read again.
    const py::object origin = py::getattr(spec, "origin", py::none());
    if (!origin.is_none() && !py::type::of(origin).is(py::type::of(py::str())))
      throw py::import_error("the origin of " + name + " is not a string");
    return original(plain(py::arg("name") = name, py::arg("origin") = origin), *rest);
  });
}

// Hides from the collector the error that a failed import raised. The error is the task's, and must not be recorded as the
// module's. Drops its traceback and what is left of partly loaded modules.
class HiddenError {
 public:
  explicit HiddenError(PyObject* error) {
    if (error == nullptr) return;
    PyException_SetTraceback(error, Py_None);
    PyException_SetContext(error, nullptr);
    PyException_SetCause(error, nullptr);
    const bool was_collecting = PyGC_Enable() != 0;
    PyGC_Collect();
    if (!was_collecting) PyGC_Disable();
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

// The names in sys.modules at construction. Holds nothing that the collector knows, and so nothing that a snapshot would record.
class LoadedNames {
 public:
  LoadedNames() {
    PyObject* name = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(modules(), &position, &name, nullptr) != 0;)
      if (const char* text = text_of(name)) names_.insert(text);
  }

  // Removes from sys.modules, and from their packages, the modules that were added since.
  void remove_later() const {
    std::vector<std::pair<std::string, py::object>> added;
    PyObject *name = nullptr, *module = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(modules(), &position, &name, &module) != 0;) {
      const char* text = text_of(name);
      if (text != nullptr && !names_.contains(text)) added.emplace_back(text, py::reinterpret_borrow<py::object>(module));
    }
    for (const auto& [full_name, added_module] : added) {
      PyDict_DelItemString(modules(), full_name.c_str());
      const std::size_t dot = full_name.rfind('.');
      PyObject* package = dot != std::string::npos ? PyDict_GetItemString(modules(), full_name.substr(0, dot).c_str()) : nullptr;
      PyObject* names = package != nullptr && PyModule_Check(package) ? PyModule_GetDict(package) : nullptr;
      const char* leaf = full_name.c_str() + dot + 1;
      if (names != nullptr && PyDict_GetItemString(names, leaf) == added_module.ptr()) PyDict_DelItemString(names, leaf);
      PyErr_Clear();
    }
  }

 private:
  static PyObject* modules() { return PyImport_GetModuleDict(); }

  static const char* text_of(PyObject* name) {  // null for what no import puts there
    const char* text = PyUnicode_CheckExact(name) ? PyUnicode_AsUTF8(name) : nullptr;
    PyErr_Clear();
    return text;
  }

  std::unordered_set<std::string> names_;
};

// Imports the module of this full name. By C alone: the `__import__` that an import statement calls is the caller's, which may be
// a task's.
bool import_module(const std::string& name) {
  PyObject* package = PyImport_ImportModuleLevel(name.c_str(), nullptr, nullptr, nullptr, 0);
  Py_XDECREF(package);
  return package != nullptr;
}

// Returns load(name), which imports a module that stays for later tasks and calls `loaded`. It is one function in C++, because
// what a task created between the two readings of the snapshot would stay too.
//
// Either the module is loaded whole or nothing of it stays. A stop and the limits wait for its end; where they cannot wait, what
// was added is removed for the present task, and the interpreter is discarded at its end, because no state in C is restored.
py::cpp_function module_loader(const py::object& loaded) {
  return py::cpp_function([loaded](const std::string& name) {
    vm::TaskVm& task_vm = current_vm();
    if (task_vm.is_importing()) {  // part of what is being loaded
      if (!import_module(name)) throw py::error_already_set();
      return;
    }
    if (!task_vm.begin_import()) throw py::error_already_set();
    vm::Snapshot& snapshot = task_vm.interpreter().snapshot;
    snapshot.before_import();
    PyObject* error = nullptr;
    {
      const LoadedNames before;
      import_module(name);
      error = PyErr_GetRaisedException();
      // An ImportError leaves what was loaded before it, whole: packages and other modules.
      const bool is_import_error = error != nullptr && PyErr_GivenExceptionMatches(error, PyExc_ImportError) != 0;
      if (task_vm.import_was_cut() || (error != nullptr && !is_import_error)) {
        before.remove_later();
        snapshot.set_taint("the import of " + name + " was cut off");
        if (error == nullptr) PyErr_NoMemory();
      } else {
        Py_XDECREF(PyObject_CallNoArgs(loaded.ptr()));
      }
      if (error == nullptr)
        error = PyErr_GetRaisedException();
      else
        PyErr_Clear();
      const HiddenError hidden(error);
      snapshot.after_import();
    }
    if (!task_vm.end_import()) {
      Py_XDECREF(error);
      throw py::error_already_set();
    }
    PyErr_SetRaisedException(error);
    if (error != nullptr) throw py::error_already_set();
  });
}

// sys.unraisablehook of VMs. In C, because a Stopped that was raised within a hook in Python would itself be reported.
void report_unraisable(const py::object& raised) {
  const vm::TaskVm* task_vm = vm::TaskVm::current();
  if (task_vm != nullptr && raised.attr("exc_type").ptr() == task_vm->interpreter().stopped) return;
  // Not by an import, which would be the task's own while its code runs.
  if (PyObject* hook = PySys_GetObject("__unraisablehook__")) py::reinterpret_borrow<py::object>(hook)(raised);
}

// Returns the bytes of an open file, read-only. Replaces Python's mmap, with which a task could take memory that is not counted.
py::object map_file(int descriptor) {
  struct stat status{};
  const auto size = fstat(descriptor, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);  // fails for an empty file
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

py::tuple call_back(const py::str& name, const py::tuple& arguments) {
  vm::TaskVm* task_vm = vm::TaskVm::current();
  if (task_vm == nullptr) throw std::runtime_error("callbacks can only be called by code in a VM");
  bool is_error = false;
  PyObject* result = task_vm->call_back(name.ptr(), arguments.ptr(), is_error);
  if (result == nullptr) throw py::error_already_set();
  return py::make_tuple(is_error, py::reinterpret_steal<py::object>(result));
}

// Creates Stopped(BaseException), which is raised in a call from outside. In C, so that creating an object runs no Python code.
PyObject* create_stopped_type() {
  static constexpr auto init = [](PyObject* self, PyObject* args, PyObject* keywords) -> int {
    if (reinterpret_cast<PyTypeObject*>(PyExc_BaseException)->tp_init(self, args, keywords) != 0) return -1;
    if (vm::TaskVm* task_vm = vm::TaskVm::current()) task_vm->reraise();
    return 0;
  };
  PyType_Slot slots[] = {
      {Py_tp_init, reinterpret_cast<void*>(+init)},
      {Py_tp_doc, const_cast<char*>("Raised in a call from outside: its deadline has passed, its caller was cancelled, or the "
                                    "VM was closed.")},
      {0, nullptr}};
  PyType_Spec spec{"walle.engine_ext._core.Stopped", 0, 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpecWithBases(&spec, PyExc_BaseException);
  if (type == nullptr) throw py::error_already_set();
  return type;
}

}  // namespace

void bind_in_vm(py::module_& module) {
  module.attr("Stopped") = py::reinterpret_steal<py::object>(create_stopped_type());
  module.def("vm_module_loader", &module_loader,
             "Return load(name), which imports a module that stays for later tasks and calls `loaded`.");
  module.def(
      "vm_snapshot_size",
      [] {
        const vm::Snapshot& snapshot = current_vm().interpreter().snapshot;
        return py::make_tuple(snapshot.size(), snapshot.bytes());
      },
      "Return (objects, bytes) of the snapshot that the current interpreter is reset to.");
  module.def("vm_sleep", &sleep, "time.sleep that ends when the call is stopped.");
  module.def(
      "vm_exceed_limit",
      [](const std::string& limit) {
        current_vm().exceed_limit(limit);
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      },
      "Stop the running call for a limit that it exceeded: raise Stopped.");
  module.def(
      "vm_enter_phase",
      [](const std::string& phase, py::handle code) {
        if (vm::TaskVm* task_vm = vm::TaskVm::current()) task_vm->enter_phase(phase, code.ptr());
      },
      py::arg("phase"), py::arg("code"), "Record that the task enters a phase (\"\": the same one), and code of its own.");
  module.def(
      "vm_park_if_abandoned",
      [](const py::args&) {
        if (vm::TaskVm* task_vm = vm::TaskVm::current()) task_vm->park_if_abandoned();
      },
      "Park the thread permanently where its VM is abandoned; for gc.callbacks.");
  module.def("vm_protect_types", [module] { protect_types(module); }, "Make the module's types immutable and final.");
  module.def("vm_report_unraisable", &report_unraisable, "sys.unraisablehook that ignores Stopped.");
  module.def("map_file", &map_file, py::arg("descriptor"), "Return the bytes of an open file, read-only, without a copy.");
  module.def("vm_restrict_loader", &restrict_loader,
             "Return a function like `original` of _imp that refuses specs of other names.");
  module.def(
      "vm_used_bytes", [] { return current_vm().used_bytes(); },
      "Return the bytes of Python objects and engine memory that the current VM has allocated.");
  module.def("call_back", &call_back, "Return (is_error, result) of a callback of the VM's caller.");
}

}  // namespace walle
