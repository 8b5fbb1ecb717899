// The VM host's side of its socket: starts the VMs that the device asks for, and passes calls to them and replies back. Runs on
// the host's main thread, without a GIL.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vm/crash_record.h"
#include "vm/message_socket.h"
#include "vm/task_vm.h"

namespace walle::vm {

class HostServer {
 public:
  HostServer(Descriptor socket, const ArrayPort& port);

  // Blocks until the device's first message, and returns its value. Throws std::runtime_error where the device has ended.
  Value receive_config();
  // The descriptor to which faulthandler is to write, after `receive_config`; -1 where there is none.
  int trace_fd() const { return record_ ? record_->trace_fd() : -1; }
  // The descriptors through which it serves, none of which it reads, writes or closes by the calls for files.
  std::vector<int> descriptors() const;
  void send_hello(const Value& value);
  // Ends the process once the device has ended or closed the socket.
  [[noreturn]] void serve();

 private:
  class Replies;
  struct Hosted {
    std::shared_ptr<TaskVm> vm;
    std::shared_ptr<Replies> replies;
  };

  struct Files {
    Dict mapped;
    std::string failure;  // error of the last file that could not be mapped
  };

  bool wait();
  void handle(Message& message);
  void start_vm(MessageReader& reader);
  void take_buffer(MessageReader& reader);
  void take_files(MessageReader& reader);
  void submit(Message& message);
  void send_change(std::uint64_t vm_id, const VmChange& change);
  void remove_ended();
  TaskVm* find(std::uint64_t vm_id) const;

  // Shared with the VMs' threads, which may outlive this object.
  const std::shared_ptr<MessageSocket> socket_;
  const ArrayPort& port_;
  const Descriptor parent_;  // readable once the device's process has ended; none on old kernels
  std::vector<Message> received_;
  std::unique_ptr<CrashRecord> record_;
  std::map<std::uint64_t, Hosted> vms_;
  HostBuffers buffers_;
  std::map<std::uint64_t, Files> files_;  // files of VMs that have not started yet
  std::mutex ended_mutex_;
  std::vector<std::uint64_t> ended_;
};

}  // namespace walle::vm
