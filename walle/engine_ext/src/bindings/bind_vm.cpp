// VMs and reply queues for walle.engine_ext.vm. The asyncio side is Python; no function here blocks while it holds a GIL.
#include <poll.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <thread>

#include "bindings/bind.h"
#include "bindings/vm_handle.h"
#include "bindings/vm_values.h"
#include "vm/array_loans.h"
#include "vm/create_interpreter.h"
#include "vm/interpreter_pool.h"
#include "vm/reply_queue.h"
#include "vm/task_vm.h"

namespace py = pybind11;

namespace walle {

namespace {

const char* outcome_name(vm::Outcome outcome) {
  switch (outcome) {
    case vm::Outcome::ok: return "ok";
    case vm::Outcome::failed: return "failed";
    case vm::Outcome::not_plain: return "not_plain";
    case vm::Outcome::deadline: return "deadline";
    case vm::Outcome::limit: return "limit";
    case vm::Outcome::cancelled: return "cancelled";
    case vm::Outcome::closed: return "closed";
    case vm::Outcome::callback: return "callback";
    case vm::Outcome::crashed: return "crashed";
    case vm::Outcome::lost: return "lost";
    case vm::Outcome::not_received: return "not_received";
  }
  return "closed";
}

// Returns the microseconds from submitting a call without arguments until its result, for each of `count` calls in turn: what a
// caller in C++ measures that spins for the result before it blocks, as a VM's thread does for a call.
std::vector<double> round_trips(vm::VirtualMachine& vm, const std::string& function, int count) {
  const auto replies = std::make_shared<vm::ReplyQueue>();
  std::vector<double> times_us;
  for (int call = 1; call <= count; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    vm.submit(replies, static_cast<std::uint64_t>(call), function, {vm::Tuple{}}, std::nullopt);
    pollfd waiting{replies->fd(), POLLIN, 0};
    while (poll(&waiting, 1, 0) == 0 && std::chrono::steady_clock::now() < begin + vm::kSpinTime) std::this_thread::yield();
    while (poll(&waiting, 1, -1) < 0 && errno == EINTR) {
    }
    for (const vm::Reply& reply : replies->take_all())
      if (reply.outcome != vm::Outcome::ok)
        throw std::runtime_error(std::string("the call ended with ") + outcome_name(reply.outcome));
    times_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  return times_us;
}

py::list take_replies(vm::ReplyQueue& queue) {
  vm::ArrayLoans::current()->release_ended();
  py::list replies;
  for (vm::Reply& reply : queue.take_all()) {
    py::object value = py::none();
    std::string text = std::move(reply.text);
    vm::Outcome outcome = reply.outcome;
    try {
      value = write_value(reply.value);
    } catch (py::error_already_set& error) {  // no memory for it: only that call fails
      const bool is_short = error.matches(PyExc_MemoryError);
      outcome = is_short ? vm::Outcome::not_received : vm::Outcome::not_plain;
      text = std::string(is_short ? "" : "the result could not be received: ") + error.what();
    }
    replies.append(py::make_tuple(
        reply.call_id, outcome_name(outcome), std::move(value),
        py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"))));
  }
  return replies;
}

}  // namespace

vm::Settings vm_settings(const std::string& name, py::handle config, std::unordered_set<std::string> task_files, double grace,
                         std::int64_t memory_bytes, std::int64_t output_bytes) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main())
    throw std::runtime_error("a VM can only be created by the main interpreter");
  vm::Settings settings;
  settings.name = name;
  settings.config = read_value(config, "config");
  settings.task_files = std::move(task_files);
  settings.grace = std::chrono::duration_cast<std::chrono::milliseconds>(nanoseconds(grace));
  settings.memory_bytes = memory_bytes;
  settings.output_bytes = output_bytes;
  return settings;
}

void bind_vm(py::module_& module) {
  py::class_<vm::ReplyQueue, std::shared_ptr<vm::ReplyQueue>>(module, "ReplyQueue")
      .def(py::init<>())
      .def_property_readonly("fd", &vm::ReplyQueue::fd)
      .def("take_all", &take_replies, "Return the replies so far: (call id, outcome, value, text).");

  py::class_<VMHandle>(module, "VM")
      .def(py::init([](const std::string& name, py::handle config, std::unordered_set<std::string> task_files, double grace,
                       std::int64_t memory_bytes, std::int64_t output_bytes) {
             return VMHandle(vm::TaskVm::start(
                 vm_settings(name, config, std::move(task_files), grace, memory_bytes, output_bytes), kArrayPort));
           }),
           py::arg("name"), py::arg("config"), py::arg("task_files"), py::arg("grace"), py::arg("memory_bytes"),
           py::arg("output_bytes"))
      .def("submit",
           [](const VMHandle& self, std::shared_ptr<vm::ReplyQueue> replies, std::uint64_t call_id, const std::string& function,
              const py::tuple& arguments, std::optional<double> deadline) {
             std::optional<std::chrono::nanoseconds> limit;
             if (deadline) limit = nanoseconds(*deadline);
             translate_not_plain(
                 [&] { self.vm().submit(std::move(replies), call_id, function, read_value(arguments, "args"), limit); });
           })
      .def("round_trips",
           [](const VMHandle& self, const std::string& function, int count) {
             const py::gil_scoped_release release;
             return round_trips(self.vm(), function, count);
           })
      .def("cancel", [](const VMHandle& self, std::uint64_t call_id) { self.vm().cancel(call_id); })
      .def("answer",
           [](const VMHandle& self, std::uint64_t call_id, py::handle value, bool is_error) {
             translate_not_plain([&] { self.vm().answer(call_id, read_value(value, "answer"), is_error); });
           })
      .def("close", [](const VMHandle& self) { self.vm().close(); })
      .def("join",
           [](const VMHandle& self, double timeout) {
             const py::gil_scoped_release release;
             return self.vm().join(nanoseconds(timeout));
           })
      .def_property_readonly("alive", [](const VMHandle& self) { return self.vm().alive(); })
      .def_property_readonly("crashed", [](const VMHandle& self) { return self.vm().was_crashed(); })
      .def_property_readonly("suspected", [](const VMHandle& self) { return self.vm().was_suspected(); })
      .def_property_readonly("abandoned", [](const VMHandle& self) { return self.vm().was_abandoned(); })
      .def_property_readonly("reset_failure", [](const VMHandle& self) { return self.vm().reset_failure(); })
      .def_property_readonly("leaked_bytes", [](const VMHandle& self) { return self.vm().leaked_bytes(); })
      .def_property_readonly("calls", [](const VMHandle& self) { return self.vm().calls(); })
      .def_property_readonly("create_ms", [](const VMHandle& self) { return self.vm().create_ms(); });

  module.def("vm_set_empty_site", [](const py::bytes& code) { vm::set_empty_site(code); });
  module.def("vm_set_boot", [](const py::bytes& code, py::handle paths) {
    vm::InterpreterPool::instance().set_boot({std::string(code), read_value(paths, "paths")}, kArrayPort);
  });
  module.def("vm_register_modules", [](const py::dict& modules) {
    for (const auto& [name, code] : modules)
      vm::InterpreterPool::instance().register_module(py::cast<std::string>(name), read_value(code, "module"));
  });
  module.def("vm_counts", [] {
    const vm::InterpreterCounts counts = vm::InterpreterPool::instance().counts();
    py::dict all;
    all["created"] = counts.created;
    all["vms"] = counts.vms;
    all["recycled"] = counts.recycled;
    all["discarded"] = counts.discarded;
    all["threads"] = counts.threads;
    all["idle"] = counts.idle;
    all["discard_reason"] = counts.discard_reason;
    return all;
  });
  module.def("vm_count_memory", &vm::Heap::install_allocators, "Count the memory of VMs' Python objects from now on.");
  module.def("vm_abandoned_threads", &vm::TaskVm::abandoned_threads, "Return the number of abandoned VM threads still busy.");
  module.def("vm_retired_threads", &vm::TaskVm::retired_threads,
             "Return the number of VM threads parked permanently, in C calls that never end.");
  module.def("vm_shut_down", [](double timeout) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main())
      throw py::type_error("VMs can only be shut down by the main interpreter");
    const py::gil_scoped_release release;
    return vm::TaskVm::shut_down(nanoseconds(timeout));
  });
  bind_in_vm(module);
  bind_vm_host(module);
  bind_shared_arrays(module);
}

}  // namespace walle
