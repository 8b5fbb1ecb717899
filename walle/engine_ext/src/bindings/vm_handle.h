// Owner of a VM in Python: dropping it closes the VM. The same for VMs in this process and in a VM host.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "vm/task_vm.h"
#include "vm/virtual_machine.h"

namespace walle {

class VMHandle {
 public:
  explicit VMHandle(std::shared_ptr<vm::VirtualMachine> vm) : vm_(std::move(vm)) {}
  VMHandle(VMHandle&&) = default;
  VMHandle(const VMHandle&) = delete;
  VMHandle& operator=(const VMHandle&) = delete;
  ~VMHandle() {
    if (vm_) vm_->close();
  }
  vm::VirtualMachine& vm() const { return *vm_; }

 private:
  std::shared_ptr<vm::VirtualMachine> vm_;
};

// Throws std::runtime_error outside the main interpreter, and Python's TypeError where the config is not plain data.
vm::Settings vm_settings(const std::string& name, pybind11::handle config, std::unordered_set<std::string> task_files,
                         double grace, std::int64_t memory_bytes, std::int64_t output_bytes);

// Binds the VM host: its client for the device, its server for the host's own process.
void bind_vm_host(pybind11::module_& module);
// Binds arrays in memory that VM hosts share.
void bind_shared_arrays(pybind11::module_& module);

}  // namespace walle
