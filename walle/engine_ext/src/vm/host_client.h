// The device's side of the socket to its VM host: the VMs in the host, their calls, and what happens to them when the host ends.
//
// The host may have been taken over by a task. Whatever it sends is checked, and a message that a host would not send ends it: it
// can return wrong results to the calls that run in it, and nothing else. Nor is it believed who ended it: every VM that ran is
// suspected then, and one is the cause for certain only where no other was ever in that host.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "vm/crash_record.h"
#include "vm/host_process.h"
#include "vm/message_socket.h"
#include "vm/shared_buffers.h"
#include "vm/task_vm.h"
#include "vm/virtual_machine.h"

namespace walle::vm {

class HostedVm;

// The times that a host has, after which it is retired or killed.
struct HostTimes {
  // For a VM that was closed to end. Then the host is retired: it may have been taken over.
  std::chrono::nanoseconds close = std::chrono::minutes{1};
  // A call's reply is due after its deadline and grace period. Once it is overdue the host is asked whether it runs at all, and
  // is killed where it does not say so within this time, or sends no reply within this time and that of loading.
  std::chrono::nanoseconds reply = std::chrono::seconds{5};
  // For the running calls of a host that is retired.
  std::chrono::nanoseconds retire = std::chrono::seconds{5};
};

// How a host has ended.
struct HostEnd {
  std::string reason;
  bool is_wanted = false;      // the owner closed it
  bool is_suspicious = false;  // a VM that ran may have been the cause
  bool is_certain = false;     // the only VM that was ever in it was the cause, if it ran
};

// A resource of a task: its path in the task, and where it is.
struct TaskFile {
  std::string name;
  std::string path;
};

class HostClient : public std::enable_shared_from_this<HostClient>, public BufferListener, private BufferSender {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the thread that reads the socket. Throws std::system_error.
  static std::shared_ptr<HostClient> start(Descriptor socket, const ArrayPort& port, const HostTimes& times);
  ~HostClient() override;

  // Has the host unmap a buffer that has ended.
  void on_buffer_end(std::uint64_t id) override;

  // The first message; `value` is for the host's Python side.
  void send_config(const Value& value);
  void send_modules(const Value& value);
  // The host's process, which is killed when the host misbehaves, or is retired. To be called once, soon after `start`.
  void set_process(pid_t process);
  // A VM whose settings' on_change is not used. `files` are the task's resources, which are opened as they are sent. With
  // `is_alone` the host ends with this VM. Throws std::runtime_error that names the file that cannot be opened.
  std::shared_ptr<VirtualMachine> start_vm(Settings settings, const std::vector<TaskFile>& files, bool is_alone = false);

  // Whether new VMs should be started in this host: it has neither ended nor been retired.
  bool is_usable() const;
  // Ends the host once its running calls have ended, or HostTimes::retire has passed. Its VMs are no longer alive. A host is also
  // retired when a call has not stopped within kStuckTime after its VM was abandoned.
  void retire();
  // Ends the host now.
  void kill(const std::string& reason);
  // What the host reports of itself, once it has started.
  std::optional<Value> hello() const;
  // Waits for hello or the host's end.
  void wait_ready(std::chrono::nanoseconds timeout) const;
  // Whether the host has ended, and the replies of its calls have been sent, within the timeout.
  bool wait_ended(std::chrono::nanoseconds timeout) const;
  std::string end_reason() const;
  // The VMs that ran as the host ended of itself or by a signal, each with what its task was doing: "NAME (execute, main.py:3 in
  // f)".
  std::vector<std::string> ran_at_end() const;

  static constexpr std::chrono::seconds kStuckTime{1};
  static constexpr std::int64_t kMaxLeakedBytes = std::int64_t{128} << 20;
  // Added to when a reply is due where the VM has not started: the time limit for creating an interpreter.
  static constexpr std::chrono::seconds kStartTime{20};
  // The kill reason of a host that its owner has no more use for.
  static constexpr const char* kWasClosed = "was closed";

 private:
  friend class HostedVm;
  HostClient(Descriptor socket, const ArrayPort& port, const HostTimes& times);

  static constexpr const char* kForked = "the process was forked; its VMs stayed with the parent";

  void run();
  bool wait_and_handle(std::vector<Message>& messages);
  bool receive_rest(std::vector<Message>& messages);
  bool has_process_ended() const;
  void handle(Message& message);
  void handle_reply(MessageReader& reader);
  void handle_change(MessageReader& reader);
  bool send_buffer(const SharedRange& range) override;
  void send_files(std::uint64_t vm_id, const std::vector<TaskFile>& files);
  void refuse_callback(HostedVm& vm, std::uint64_t call_id, const std::string& why);
  void end(const HostEnd& end);
  HostEnd describe_end(const std::string& violation);
  std::size_t max_message_bytes() const;

  // With mutex_ held.
  std::shared_ptr<HostedVm> find(std::uint64_t vm_id) const;
  std::optional<Clock::time_point> next_check() const;
  void check_times(Clock::time_point now);
  void kill_unresponsive();

  // Whether its process has not been started yet, which may take long for one that runs a VM alone.
  bool waits_for_turn() const { return is_alone_ && !process_; }

  bool is_in_child() const;

  MessageSocket socket_;
  const ArrayPort& port_;
  const HostTimes times_;
  const pid_t owner_;                        // the process that created this object
  std::mutex buffers_mutex_;                 // taken after mutex_, or alone
  std::set<std::uint64_t> buffers_in_host_;  // buffers that were sent and have not ended
  std::uint64_t keeps_left_ = 0;             // buffers that the host may yet say are kept: a bound on such messages
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<HostedVm>> vms_;  // VMs that have not ended
  std::uint64_t next_vm_ = 1;
  bool is_alone_ = false;  // ends with its VM
  HostProcess process_;
  CrashRecordPort record_;  // record of the host's crashes
  std::optional<Value> hello_;
  std::string kill_reason_;
  bool is_unresponsive_ = false;               // the reason for which it was killed
  std::optional<Clock::time_point> asked_at_;  // time of a question to the host that has no answer yet
  std::optional<Clock::time_point> retired_at_;
  std::optional<Clock::time_point> wakes_at_;  // time at which the reading thread wakes up next
  std::int64_t leaked_bytes_ = 0;
  std::size_t max_message_bytes_ = max_reply_bytes(1);  // limit of any VM so far: replies of ended VMs may be under way
  std::size_t late_replies_ = 0;                        // calls of ended VMs that the host may still answer
  bool has_ended_ = false;
  std::string end_reason_;
  std::vector<std::string> ran_at_end_;
};

}  // namespace walle::vm
