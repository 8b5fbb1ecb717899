// The VM host (§4.3) for walle.engine_ext.vm.host: the device's client, and the server that runs in the host's process.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/vm_handle.h"
#include "bindings/vm_values.h"
#include "vm/host_client.h"
#include "vm/host_sandbox.h"
#include "vm/host_server.h"

namespace py = pybind11;

namespace walle {

namespace {

using Client = std::shared_ptr<vm::HostClient>;

VMHandle start_hosted_vm(vm::HostClient& client, const std::string& name, py::handle config,
                         std::unordered_set<std::string> task_files, double grace, std::int64_t memory_bytes,
                         std::int64_t output_bytes, const std::vector<std::pair<std::string, std::string>>& files, bool alone) {
  std::vector<vm::TaskFile> resources;
  resources.reserve(files.size());
  for (const auto& [path_in_task, path] : files) resources.push_back({path_in_task, path});
  auto settings = vm_settings(name, config, std::move(task_files), grace, memory_bytes, output_bytes);
  return VMHandle(client.start_vm(std::move(settings), resources, alone));
}

py::dict enter_sandbox(const std::vector<std::string>& readable, const std::vector<int>& reserved, std::uint64_t max_memory_bytes,
                       const std::vector<int>& write_only) {
  const vm::SandboxLayers layers = vm::enter_sandbox(readable, reserved, max_memory_bytes, write_only);
  py::dict found;
  found["no_new_privileges"] = layers.no_new_privileges;
  found["not_dumpable"] = layers.not_dumpable;
  found["landlock"] = layers.landlock;
  found["seccomp"] = layers.seccomp;
  return found;
}

}  // namespace

void bind_vm_host(py::module_& module) {
  py::class_<vm::HostClient, Client>(module, "HostClient", "The device's end of the socket to its VM host.")
      .def(py::init([](int fd, double close_s, double reply_s, double retire_s) {
             const vm::HostTimes times{nanoseconds(close_s), nanoseconds(reply_s), nanoseconds(retire_s)};
             return vm::HostClient::start(vm::Descriptor(fd), kArrayPort, times);
           }),
           py::arg("fd"), py::arg("close_s") = 60.0, py::arg("reply_s") = 5.0, py::arg("retire_s") = 5.0)
      .def("send_config", [](vm::HostClient& self,
                             py::handle config) { translate_not_plain([&] { self.send_config(read_value(config, "config")); }); })
      .def("send_modules",
           [](vm::HostClient& self, py::handle modules) {
             translate_not_plain([&] { self.send_modules(read_value(modules, "modules")); });
           })
      .def("set_process", &vm::HostClient::set_process, py::arg("process"))
      .def("start_vm", &start_hosted_vm, py::arg("name"), py::arg("config"), py::arg("task_files"), py::arg("grace"),
           py::arg("memory_bytes"), py::arg("output_bytes"), py::arg("files"), py::arg("alone") = false)
      .def("retire", &vm::HostClient::retire)
      .def("kill", &vm::HostClient::kill, py::arg("reason"))
      .def("wait_ready",
           [](const vm::HostClient& self, double timeout) {
             const py::gil_scoped_release release;
             self.wait_ready(nanoseconds(timeout));
           })
      .def("wait_ended",
           [](const vm::HostClient& self, double timeout) {
             const py::gil_scoped_release release;
             return self.wait_ended(nanoseconds(timeout));
           })
      .def_property_readonly("usable", &vm::HostClient::is_usable)
      .def_property_readonly("end_reason", &vm::HostClient::end_reason)
      .def_property_readonly("ran_at_end",
                             [](const vm::HostClient& self) {
                               py::list all;
                               for (const std::string& one : self.ran_at_end()) all.append(decode_text(one));
                               return all;
                             })
      .def_property_readonly("hello", [](const vm::HostClient& self) -> py::object {
        const auto found = self.hello();
        return found ? write_value(*found) : py::none();
      });

  py::class_<vm::HostServer>(module, "HostServer", "The VM host's end of the socket, in the host's process.")
      .def(py::init([](int fd) { return std::make_unique<vm::HostServer>(vm::Descriptor(fd), kArrayPort); }), py::arg("fd"))
      .def("receive_config",
           [](vm::HostServer& self) {
             vm::Value config;
             {
               const py::gil_scoped_release release;
               config = self.receive_config();
             }
             return write_value(config);
           })
      .def_property_readonly("descriptors", &vm::HostServer::descriptors)
      .def_property_readonly("trace_fd", &vm::HostServer::trace_fd)
      .def("send_hello", [](vm::HostServer& self, py::handle value) { self.send_hello(read_value(value, "hello")); })
      .def("serve", &vm::HostServer::serve, py::call_guard<py::gil_scoped_release>());
  module.def("enter_sandbox", &enter_sandbox, py::arg("readable"), py::arg("reserved") = std::vector<int>(),
             py::arg("max_memory_bytes") = 0, py::arg("write_only") = std::vector<int>(),
             "Restrict this process permanently to reading these paths, and not to use the reserved descriptors as files; return "
             "the layers that are active.");
}

}  // namespace walle
