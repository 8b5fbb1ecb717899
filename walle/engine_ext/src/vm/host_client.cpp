#include "vm/host_client.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "vm/call.h"
#include "vm/thread.h"

namespace walle::vm {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kReplySlack = std::size_t{1} << 20;        // beside a result: descriptions of errors
constexpr std::size_t kUnlimitedBytes = std::size_t{512} << 20;  // of a message with results that no limit bounds
constexpr std::int64_t kUnlimitedResult = kMaxArrayBytes + (std::int64_t{256} << 20);
constexpr std::size_t kMaxChangeText = 64 << 10;
constexpr auto kExitTime = 500ms;  // that a host whose socket is closed has to exit

// Whether code of the host may have caused the signal; others come from the system or from people.
bool is_crash(int signal) {
  constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
  return std::find(kCrashes.begin(), kCrashes.end(), signal) != kCrashes.end();
}

std::string signal_name(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGILL: return "SIGILL";
    case SIGFPE: return "SIGFPE";
    case SIGABRT: return "SIGABRT";
    case SIGSYS: return "SIGSYS";
    case SIGTRAP: return "SIGTRAP";
    case SIGKILL: return "SIGKILL";
    case SIGTERM: return "SIGTERM";
    default: return "signal " + std::to_string(signal);
  }
}

}  // namespace

// A VM in the host. Its fields are guarded by the client's mutex.
class HostedVm final : public VirtualMachine, public std::enable_shared_from_this<HostedVm> {
 public:
  HostedVm(std::shared_ptr<HostClient> host, std::uint64_t id, std::chrono::milliseconds grace, std::int64_t output_bytes)
      : host_(std::move(host)), id_(id), grace_(grace), output_bytes_(output_bytes) {}

  void submit(std::shared_ptr<ReplySink> replies, std::uint64_t call_id, std::string function, Value arguments,
              std::optional<std::chrono::nanoseconds> deadline) override {
    if (host_->is_in_child()) return replies->push({call_id, Outcome::closed, {}, kForked});
    MessageWriter writer(MessageType::submit);
    writer.put(id_).put(call_id).put<std::int64_t>(deadline ? deadline->count() : -1).put_text(function).put_value(arguments);
    const std::lock_guard lock(host_->mutex_);
    if (state_ != State::starting && state_ != State::open)
      return replies->push({call_id, host_end_is_loss() ? Outcome::lost : Outcome::closed, {}, reject_reason_});
    calls_waiting_.push_back({call_id, std::move(replies), deadline, {}, false});
    if (calls_waiting_.size() == 1) begin_front();
    host_->socket_.send(writer.take());
    if (const auto due = reply_due(); due && (!host_->wakes_at_ || *due < *host_->wakes_at_)) host_->socket_.wake();
  }

  void cancel(std::uint64_t call_id) override { send_if_waiting(MessageType::cancel, call_id, nullptr, false); }

  void answer(std::uint64_t call_id, Value value, bool is_error) override {
    send_if_waiting(MessageType::answer, call_id, &value, is_error);
  }

  void close() override {
    if (host_->is_in_child()) return;
    const std::lock_guard lock(host_->mutex_);
    if (state_ != State::starting && state_ != State::open) return;
    state_ = State::closing;
    reject_reason_ = kClosed;
    host_->socket_.send(MessageWriter(MessageType::close).put(id_).take());
  }

  bool join(std::chrono::nanoseconds timeout) override {
    if (host_->is_in_child()) return true;
    std::unique_lock lock(host_->mutex_);
    return host_->changed_.wait_for(lock, timeout, [&] { return state_ == State::ended; });
  }

  bool alive() const override {
    if (host_->is_in_child()) return false;
    const std::lock_guard lock(host_->mutex_);
    return (state_ == State::starting || state_ == State::open) && !host_->retired_at_;
  }
  bool was_abandoned() const override { return read(was_abandoned_); }
  bool was_crashed() const override { return read(was_crashed_); }
  std::string reset_failure() const override { return read(reset_failure_); }
  std::int64_t leaked_bytes() const override { return read(leaked_bytes_); }
  std::uint64_t calls() const override { return read(calls_); }
  double create_ms() const override { return read(create_ms_); }

 private:
  friend class HostClient;
  enum class State : std::uint8_t { starting, open, closing, abandoned, ended };
  struct Waiting {
    std::uint64_t id = 0;
    std::shared_ptr<ReplySink> replies;
    std::optional<std::chrono::nanoseconds> deadline;
    HostClient::Clock::time_point began_at;  // at the latest, where it is the first
    bool has_callback = false;               // its VM waits for an answer
    bool is_overdue = false;                 // the host was asked whether it runs
  };
  static constexpr const char* kForked = "the process was forked; its VMs stayed with the parent";

  template <class T>
  T read(const T& field) const {
    if (host_->is_in_child()) return {};
    const std::lock_guard lock(host_->mutex_);
    return field;
  }

  bool host_end_is_loss() const { return state_ == State::ended && is_lost_; }

  void begin_front() {
    if (!calls_waiting_.empty()) calls_waiting_.front().began_at = HostClient::Clock::now();
  }

  void send_if_waiting(MessageType type, std::uint64_t call_id, const Value* value, bool is_error) {
    if (host_->is_in_child()) return;
    MessageWriter writer(type);
    writer.put(id_).put(call_id);
    if (value != nullptr) writer.put(static_cast<std::uint8_t>(is_error)).put_value(*value);
    const std::lock_guard lock(host_->mutex_);
    const auto found = find_call(call_id);
    if (found == calls_waiting_.end()) return;
    if (value != nullptr && !std::exchange(found->has_callback, false)) return;
    host_->socket_.send(writer.take());
  }

  std::deque<Waiting>::iterator find_call(std::uint64_t call_id) {
    return std::find_if(calls_waiting_.begin(), calls_waiting_.end(), [&](const Waiting& one) { return one.id == call_id; });
  }

  // Whether it runs a call, or what its task left: a finalizer that does not stop counts against the task.
  bool is_busy() const { return !calls_waiting_.empty() || state_ == State::closing; }

  // When the first call's reply is due; once it is overdue, when the host must have sent it, however long it loads.
  std::optional<HostClient::Clock::time_point> reply_due() const {
    if (calls_waiting_.empty() || !calls_waiting_.front().deadline) return std::nullopt;
    const auto start_time = state_ == State::starting ? HostClient::kStartTime : 0s;
    const Waiting& first = calls_waiting_.front();
    const auto due = first.began_at + *first.deadline + grace_ + start_time;
    return first.is_overdue ? due + kLoadTime + kImportTime + HostClient::kReplyTime : due;
  }

  Limits result_limits() const {
    Limits limits;
    limits.all_bytes = output_bytes_ > 0 ? output_bytes_ : kUnlimitedResult;
    return limits;
  }

  // The host has ended.
  void end(const HostEnd& end, bool is_wanted) {
    const bool is_culprit = end.culprit == id_;
    was_crashed_ = is_culprit && !calls_waiting_.empty();
    is_lost_ = !is_wanted;
    reject_reason_ = end.reason;
    state_ = State::ended;
    bool is_first = true;
    for (const Waiting& call : calls_waiting_) {
      const Outcome outcome = is_wanted ? Outcome::closed : is_culprit && is_first ? Outcome::crashed : Outcome::lost;
      call.replies->push({call.id, outcome, {}, end.reason});
      is_first = false;
    }
    calls_waiting_.clear();
  }

  const std::shared_ptr<HostClient> host_;
  const std::uint64_t id_;
  const std::chrono::milliseconds grace_;
  const std::int64_t output_bytes_;
  State state_ = State::starting;
  std::string reject_reason_;
  bool is_lost_ = false;      // by the host's end
  std::uint8_t changes_ = 0;  // reported so far: a bit for each kind
  std::deque<Waiting> calls_waiting_;
  bool was_abandoned_ = false;
  bool was_crashed_ = false;
  std::optional<HostClient::Clock::time_point> abandoned_at_;
  std::string reset_failure_;
  std::int64_t leaked_bytes_ = 0;
  std::uint64_t calls_ = 0;
  double create_ms_ = 0;
};

HostClient::HostClient(Descriptor socket, const ArrayPort& port) : socket_(std::move(socket)), port_(port), owner_(getpid()) {}

HostClient::~HostClient() = default;

std::shared_ptr<HostClient> HostClient::start(Descriptor socket, const ArrayPort& port) {
  auto client = std::shared_ptr<HostClient>(new HostClient(std::move(socket), port));
  std::thread([client] { guard_thread([&] { client->run(); }); }).detach();
  return client;
}

bool HostClient::is_in_child() const { return getpid() != owner_; }

void HostClient::send_config(const Value& value) {
  MessageWriter writer(MessageType::config);
  writer.put_value(value).put_descriptor(Descriptor(fcntl(crash_record_.fd(), F_DUPFD_CLOEXEC, 0)));
  socket_.send(writer.take());
}

void HostClient::send_modules(const Value& value) { socket_.send(MessageWriter(MessageType::modules).put_value(value).take()); }

void HostClient::set_process(pid_t process) {
  const std::lock_guard lock(mutex_);
  process_ = process;
#ifdef SYS_pidfd_open
  process_handle_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
#endif
  if (!kill_reason_.empty()) kill_process();
}

std::shared_ptr<VirtualMachine> HostClient::start_vm(Settings settings, std::vector<std::pair<std::string, Descriptor>> files) {
  std::vector<Message> messages;
  const std::lock_guard lock(mutex_);
  const std::uint64_t vm_id = next_vm_++;
  for (std::size_t first = 0; first < files.size(); first += kMaxDescriptors) {
    MessageWriter writer(MessageType::files);
    const std::size_t count = std::min(kMaxDescriptors, files.size() - first);
    writer.put(vm_id).put(static_cast<std::uint32_t>(count));
    for (std::size_t i = first; i < first + count; ++i)
      writer.put_text(files[i].first).put_descriptor(std::move(files[i].second));
    messages.push_back(writer.take());
  }
  MessageWriter writer(MessageType::start);
  writer.put(vm_id).put_text(settings.name).put<std::int64_t>(settings.grace.count());
  writer.put(settings.memory_bytes).put(settings.output_bytes);
  writer.put(static_cast<std::uint32_t>(settings.task_files.size()));
  for (const std::string& file : settings.task_files) writer.put_text(file);
  writer.put_value(settings.config);
  messages.push_back(writer.take());
  auto vm = std::make_shared<HostedVm>(shared_from_this(), vm_id, settings.grace, settings.output_bytes);
  if (has_ended_) {
    vm->end({end_reason_, 0}, false);
    return vm;
  }
  vms_[vm_id] = vm;
  for (Message& message : messages) socket_.send(std::move(message));
  return vm;
}

bool HostClient::is_usable() const {
  if (is_in_child()) return false;
  const std::lock_guard lock(mutex_);
  return !has_ended_ && !retired_at_ && kill_reason_.empty();
}

void HostClient::retire() {
  if (is_in_child()) return;
  const std::lock_guard lock(mutex_);
  if (!retired_at_) retired_at_ = Clock::now();
  socket_.wake();
}

void HostClient::kill(const std::string& reason) {
  if (is_in_child()) return;
  const std::lock_guard lock(mutex_);
  if (kill_reason_.empty()) kill_reason_ = reason;
  kill_process();
  socket_.wake();
}

std::optional<Value> HostClient::hello() const {
  if (is_in_child()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return hello_;
}

void HostClient::wait_ready(std::chrono::nanoseconds timeout) const {
  if (is_in_child()) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return hello_.has_value() || has_ended_; });
}

bool HostClient::wait_ended(std::chrono::nanoseconds timeout) const {
  if (is_in_child()) return true;
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return has_ended_; });
}

std::string HostClient::end_reason() const {
  if (is_in_child()) return HostedVm::kForked;
  const std::lock_guard lock(mutex_);
  return end_reason_;
}

void HostClient::kill_process() {
  if (process_ <= 0) return;
#ifdef SYS_pidfd_send_signal
  if (process_handle_) {
    syscall(SYS_pidfd_send_signal, process_handle_.get(), SIGKILL, nullptr, 0);
    return;
  }
#endif
  siginfo_t info = {};  // nobody else has waited for it yet: the number is still its own
  if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0) ::kill(process_, SIGKILL);
}

// --- The thread that reads the socket

void HostClient::run() {
  std::string violation;
  std::vector<Message> messages;
  for (bool is_open = true; is_open;) {
    std::optional<Clock::time_point> check_at;
    {
      const std::lock_guard lock(mutex_);
      if (!kill_reason_.empty() && process_ > 0) break;
      check_at = next_check();
      // A time that is no longer needed is kept until it has passed, so that not every call has to wake this thread.
      if (wakes_at_ && *wakes_at_ > Clock::now() && (!check_at || *check_at > *wakes_at_)) check_at = wakes_at_;
      wakes_at_ = check_at;
    }
    int timeout_ms = -1;
    if (check_at) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*check_at - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    const bool has_pending = socket_.has_pending();
    pollfd waiting[] = {{socket_.fd(), static_cast<short>(has_pending ? POLLIN | POLLOUT : POLLIN), 0},
                        {socket_.wake_fd(), POLLIN, 0}};
    if (poll(waiting, 2, timeout_ms) < 0 && errno != EINTR) break;
    if (waiting[1].revents != 0) socket_.clear_wake();
    if (has_pending) socket_.flush();
    try {
      if (waiting[0].revents != 0) is_open = socket_.receive(messages, max_message_bytes());
      for (Message& message : messages) handle(message);
    } catch (const std::exception& error) {
      violation = error.what();
      break;
    }
    messages.clear();
    if (check_at && Clock::now() >= *check_at) {
      const std::lock_guard lock(mutex_);
      check_times(Clock::now());
    }
  }
  end(describe_end(std::move(violation)));
}

std::size_t HostClient::max_message_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t most = 0;
  for (const auto& [id, vm] : vms_)
    most = std::max(most, vm->output_bytes_ > 0 ? 2 * static_cast<std::size_t>(vm->output_bytes_) : kUnlimitedBytes);
  return most + kReplySlack;
}

HostedVm& HostClient::find(std::uint64_t vm_id) const {
  const auto found = vms_.find(vm_id);
  if (found == vms_.end()) throw MalformedMessage("a message is about an unknown VM");
  return *found->second;
}

void HostClient::handle(Message& message) {
  MessageReader reader(message, port_);
  if (message.type == MessageType::reply) {
    handle_reply(reader);
  } else if (message.type == MessageType::change) {
    handle_change(reader);
  } else if (message.type == MessageType::pong) {
    reader.end();
    const std::lock_guard lock(mutex_);
    if (!std::exchange(asked_at_, std::nullopt)) throw MalformedMessage("a pong without a ping");
  } else if (message.type == MessageType::hello) {
    Limits limits;
    limits.all_bytes = kMaxChangeText;
    Value value = reader.get_value(limits);
    reader.end();
    const std::lock_guard lock(mutex_);
    if (hello_) throw MalformedMessage("a second hello");
    hello_ = std::move(value);
    changed_.notify_all();
  } else {
    throw MalformedMessage("a message of the device's");
  }
}

void HostClient::handle_reply(MessageReader& reader) {
  const auto vm_id = reader.get<std::uint64_t>();
  Reply reply;
  reply.call_id = reader.get<std::uint64_t>();
  reply.outcome = reader.get_enum(Outcome::callback);
  const auto calls = reader.get<std::uint64_t>();
  reply.text = reader.get_text(kReplySlack);
  std::shared_ptr<HostedVm> vm;
  {
    const std::lock_guard lock(mutex_);
    const auto found = vms_.find(vm_id);
    if (found == vms_.end() && late_replies_ > 0) {  // the call was sent as its VM ended, and has been answered
      --late_replies_;
      reader.skip();
      return;
    }
    find(vm_id);
    vm = found->second;
  }
  const bool is_bounded = reply.outcome == Outcome::ok || reply.outcome == Outcome::callback;
  Limits limits = vm->result_limits();
  if (!is_bounded) limits.all_bytes = static_cast<std::int64_t>(kReplySlack);
  if (reply.outcome == Outcome::callback) {  // the arguments are within a pair with the name
    limits.depth += 1;
    if (limits.all_bytes > 0) limits.all_bytes += static_cast<std::int64_t>(kReplySlack);
  }
  reply.value = reader.get_value(limits);
  reader.end();
  const std::lock_guard lock(mutex_);
  const auto found = vm->find_call(reply.call_id);
  if (found == vm->calls_waiting_.end()) throw MalformedMessage("a reply to an unknown call");
  vm->calls_ = calls;
  if (reply.outcome == Outcome::callback) {
    if (found->has_callback) throw MalformedMessage("a second callback of a call that waits for the first");
    found->has_callback = true;
    found->replies->push(std::move(reply));
    return;
  }
  const bool was_front = found == vm->calls_waiting_.begin();
  const auto replies = std::move(found->replies);
  vm->calls_waiting_.erase(found);
  if (was_front) vm->begin_front();
  replies->push(std::move(reply));
  if (retired_at_) socket_.wake();
}

void HostClient::handle_change(MessageReader& reader) {
  const auto vm_id = reader.get<std::uint64_t>();
  const auto kind = reader.get_enum(VmChange::Kind::ended);
  std::string text = reader.get_text(kMaxChangeText);
  std::string reset_failure = reader.get_text(kMaxChangeText);
  const auto leaked_bytes = reader.get<std::int64_t>();
  const auto create_ms = reader.get<double>();
  reader.end();
  const std::lock_guard lock(mutex_);
  HostedVm& vm = find(vm_id);
  const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(kind));
  if ((vm.changes_ & bit) != 0) throw MalformedMessage("a change of a VM that it has reported already");
  vm.changes_ |= bit;
  switch (kind) {
    case VmChange::Kind::opened:
      vm.create_ms_ = create_ms;
      if (vm.state_ == HostedVm::State::starting) vm.state_ = HostedVm::State::open;
      vm.begin_front();
      break;
    case VmChange::Kind::rejecting:
      vm.state_ = HostedVm::State::closing;
      vm.reject_reason_ = std::move(text);
      break;
    case VmChange::Kind::abandoned:
      vm.state_ = HostedVm::State::abandoned;
      vm.reject_reason_ = "the VM was abandoned: a call did not stop";
      vm.was_abandoned_ = true;
      vm.abandoned_at_ = Clock::now();
      break;
    case VmChange::Kind::ended:
      if (!text.empty()) vm.reject_reason_ = std::move(text);
      vm.reset_failure_ = std::move(reset_failure);
      vm.leaked_bytes_ = leaked_bytes;
      leaked_bytes_ += std::clamp<std::int64_t>(leaked_bytes, 0, kMaxLeakedBytes);
      if (leaked_bytes_ >= kMaxLeakedBytes && !retired_at_) retired_at_ = Clock::now();
      vm.state_ = HostedVm::State::ended;
      for (const auto& call : vm.calls_waiting_) call.replies->push({call.id, Outcome::closed, {}, vm.reject_reason_});
      late_replies_ += vm.calls_waiting_.size();
      vm.calls_waiting_.clear();
      vms_.erase(vm_id);
      break;
  }
  changed_.notify_all();
}

std::optional<HostClient::Clock::time_point> HostClient::next_check() const {
  std::optional<Clock::time_point> next;
  const auto consider = [&](Clock::time_point when) { next = next ? std::min(*next, when) : when; };
  bool is_busy = false;
  if (asked_at_) consider(*asked_at_ + kReplyTime);
  for (const auto& [id, vm] : vms_) {
    if (const auto due = vm->reply_due()) consider(*due);
    if (vm->abandoned_at_ && !retired_at_) consider(*vm->abandoned_at_ + kStuckTime);
    is_busy = is_busy || vm->is_busy();
  }
  if (retired_at_) consider(is_busy ? *retired_at_ + kRetireTime : Clock::now());
  return next;
}

void HostClient::kill_unresponsive(std::uint64_t vm_id) {
  unresponsive_ = vm_id;
  kill_reason_ = "was killed, because it did not answer a call in time";
  kill_process();
}

void HostClient::check_times(Clock::time_point now) {
  if (asked_at_ && now >= *asked_at_ + kReplyTime && kill_reason_.empty()) return kill_unresponsive(asked_for_);
  bool is_busy = false;
  for (const auto& [id, vm] : vms_) {
    is_busy = is_busy || vm->is_busy();
    if (const auto due = vm->reply_due(); due && now >= *due && kill_reason_.empty()) {
      if (std::exchange(vm->calls_waiting_.front().is_overdue, true)) return kill_unresponsive(id);
      if (!asked_at_) {
        asked_at_ = now;
        asked_for_ = id;
        socket_.send(MessageWriter(MessageType::ping).take());
      }
    }
    if (vm->abandoned_at_ && now >= *vm->abandoned_at_ + kStuckTime && !retired_at_) {
      retired_at_ = now;
      changed_.notify_all();
    }
  }
  if (retired_at_ && (!is_busy || now >= *retired_at_ + kRetireTime) && kill_reason_.empty()) {
    kill_reason_ = "was ended, because a call in it could not be stopped, or tasks leaked too much memory";
    kill_process();
  }
}

// Waits for the process, which somebody else reaps, and says how it ended and by whose fault.
HostEnd HostClient::describe_end(std::string violation) {
  pid_t process = 0;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    process = process_;
    why = kill_reason_;
    if (!violation.empty()) kill_process();
  }
  siginfo_t info = {};
  bool is_known = false;
  for (const auto until = Clock::now() + kExitTime; process > 0 && !is_known;) {
    const bool is_waited_for = waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) != 0;
    is_known = !is_waited_for && info.si_pid == process;
    if (is_known || is_waited_for) break;  // somebody else may have taken its status
    if (Clock::now() > until) {            // it closed its socket and runs on
      const std::lock_guard lock(mutex_);
      kill_process();
      break;
    }
    std::this_thread::sleep_for(1ms);
  }
  HostEnd end;
  if (!violation.empty())
    end.reason = "the VM host was killed, because it broke its protocol: " + violation;
  else if (!why.empty())
    end.reason = "the VM host " + why;
  else if (is_known && info.si_code == CLD_EXITED)
    end.reason = "the VM host exited with status " + std::to_string(info.si_status);
  else if (is_known)
    end.reason = "the VM host was ended by " + signal_name(info.si_status);
  else
    end.reason = "the VM host closed its socket";
  const std::lock_guard lock(mutex_);
  const auto is_busy = [&](std::uint64_t id) {
    const auto found = vms_.find(id);
    return found != vms_.end() && !found->second->calls_waiting_.empty();
  };
  const bool is_by_itself =
      hello_ && why.empty() && !(is_known && info.si_code != CLD_EXITED && !is_crash(info.si_status) && violation.empty());
  if (unresponsive_ != 0) {
    end.culprit = unresponsive_;
  } else if (is_by_itself) {
    std::vector<std::uint64_t> busy;
    for (const auto& [id, vm] : vms_)
      if (!vm->calls_waiting_.empty()) busy.push_back(id);
    if (is_busy(crash_record_.owner()))
      end.culprit = crash_record_.owner();
    else if (busy.size() == 1)
      end.culprit = busy.front();
  }
  return end;
}

void HostClient::end(HostEnd end) {
  const std::lock_guard lock(mutex_);
  const bool is_wanted = kill_reason_ == "was closed";
  has_ended_ = true;
  end_reason_ = end.reason;
  for (const auto& [id, vm] : vms_) vm->end(end, is_wanted);
  vms_.clear();
  socket_.close();
  changed_.notify_all();
}

}  // namespace walle::vm
