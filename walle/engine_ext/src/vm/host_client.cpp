#include "vm/host_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "vm/hosted_vm.h"
#include "vm/thread.h"

namespace walle::vm {

using namespace std::chrono_literals;

namespace {

constexpr auto kExitTime = 500ms;        // time to exit for a host whose socket is closed
constexpr auto kLookTime = 1s;           // pause between checks of a process that has no handle to poll
constexpr std::size_t kMaxNamedVms = 8;  // named VMs, of those that ran as the host ended
constexpr int kMaxRestOfMessages = 100;  // parts of the stream that are read once the process has ended

// Opens a resource. No link is followed: it could lead anywhere.
Descriptor open_file(const TaskFile& file) {
  const auto fail = [&](const std::string& why) { throw std::runtime_error("the resource " + file.name + " " + why); };
  Descriptor opened = above_standard(Descriptor(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)));
  if (!opened && errno == ELOOP) fail("is a symbolic link; put the file itself there");
  if (!opened) fail(std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status{};
  if (fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode)) fail("is not a regular file");
  return opened;
}

}  // namespace

HostClient::HostClient(Descriptor socket, const ArrayPort& port, const HostTimes& times)
    : socket_(std::move(socket)), port_(port), times_(times), owner_(getpid()) {}

HostClient::~HostClient() = default;

std::shared_ptr<HostClient> HostClient::start(Descriptor socket, const ArrayPort& port, const HostTimes& times) {
  auto client = std::shared_ptr<HostClient>(new HostClient(std::move(socket), port, times));
  add_buffer_listener(client);
  std::thread([client] { guard_thread([&] { client->run(); }); }).detach();
  return client;
}

bool HostClient::is_in_child() const { return getpid() != owner_; }

bool HostClient::send_buffer(const SharedRange& range) {
  const std::lock_guard lock(buffers_mutex_);
  if (buffers_in_host_.contains(range.id)) {
    ++keeps_left_;
    return true;
  }
  Descriptor file = duplicate_shared(range.id);
  if (!file) return false;
  MessageWriter writer(MessageType::buffer);
  writer.put(range.id).put(static_cast<std::uint64_t>(range.buffer_bytes)).put_descriptor(std::move(file));
  socket_.send(writer.take());
  buffers_in_host_.insert(range.id);
  keeps_left_ += 2;  // one where it cannot be mapped
  return true;
}

void HostClient::on_buffer_end(std::uint64_t id) {
  if (is_in_child()) return;
  const std::lock_guard lock(buffers_mutex_);
  if (buffers_in_host_.erase(id) == 0) return;
  try {
    socket_.send(MessageWriter(MessageType::drop_buffer).put(id).take());
  } catch (const std::bad_alloc&) {  // the host keeps the mapping until it ends
  }
}

void HostClient::send_config(const Value& value) {
  auto [record, sent] = create_crash_record();
  MessageWriter writer(MessageType::config);
  writer.put_value(value).put(static_cast<std::uint8_t>(sent ? 1 : 0));
  if (sent) {
    writer.put_descriptor(std::move(sent.memory)).put_descriptor(std::move(sent.frames));
    const std::lock_guard lock(mutex_);
    record_ = std::move(record);
  }
  socket_.send(writer.take());
}

void HostClient::send_modules(const Value& value) { socket_.send(MessageWriter(MessageType::modules).put_value(value).take()); }

void HostClient::set_process(pid_t process) {
  const std::lock_guard lock(mutex_);
  process_ = HostProcess(process);
  for (const auto& [id, vm] : vms_) vm->begin_front();  // a call may have waited long for the process
  if (!kill_reason_.empty()) process_.kill();
  socket_.wake();  // the reading thread polls the process too
}

// Opens a few files at a time: a process has few descriptors.
void HostClient::send_files(std::uint64_t vm_id, const std::vector<TaskFile>& files) {
  for (std::size_t first = 0; first < files.size(); first += kMaxDescriptors) {
    MessageWriter writer(MessageType::files);
    const std::size_t count = std::min(kMaxDescriptors, files.size() - first);
    writer.put(vm_id).put(static_cast<std::uint32_t>(count));
    for (std::size_t i = first; i < first + count; ++i) writer.put_text(files[i].name).put_descriptor(open_file(files[i]));
    socket_.send(writer.take());
  }
}

std::shared_ptr<VirtualMachine> HostClient::start_vm(Settings settings, const std::vector<TaskFile>& files, bool is_alone) {
  std::uint64_t vm_id = 0;
  {
    const std::lock_guard lock(mutex_);
    vm_id = next_vm_++;
    is_alone_ = is_alone;
  }
  try {
    send_files(vm_id, files);
  } catch (const std::exception&) {
    socket_.send(MessageWriter(MessageType::close).put(vm_id).take());  // the host drops the files that it has got
    throw;
  }
  MessageWriter writer(MessageType::start);
  writer.put(vm_id).put_text(settings.name).put<std::int64_t>(settings.grace.count());
  writer.put(settings.memory_bytes).put(settings.output_bytes);
  writer.put(static_cast<std::uint32_t>(settings.task_files.size()));
  for (const std::string& file : settings.task_files) writer.put_text(file);
  writer.put_value(settings.config);
  auto vm = std::make_shared<HostedVm>(shared_from_this(), vm_id, settings);
  const std::lock_guard lock(mutex_);
  if (has_ended_) {
    vm->is_lost_ = true;
    vm->end(Outcome::lost, Outcome::lost, end_reason_);
    return vm;
  }
  socket_.send(writer.take());
  vms_[vm_id] = vm;
  max_message_bytes_ = std::max(max_message_bytes_, max_reply_bytes(vm->output_bytes_));
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
  process_.kill();
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
  if (is_in_child()) return kForked;
  const std::lock_guard lock(mutex_);
  return end_reason_;
}

std::vector<std::string> HostClient::ran_at_end() const {
  if (is_in_child()) return {};
  const std::lock_guard lock(mutex_);
  return ran_at_end_;
}

// --- The thread that reads the socket

void HostClient::run() {
  std::string violation;
  std::vector<Message> messages;
  try {
    while (wait_and_handle(messages)) {
    }
  } catch (const MalformedMessage& error) {
    violation = error.what();
  } catch (const std::exception& error) {  // this process has no memory or descriptor, for something that no call can report
    kill(std::string("was killed, because its device failed: ") + error.what());
  }
  end(describe_end(violation));
}

// Returns false once there is nothing to wait for: the host has closed its socket or ended, or is to be killed.
bool HostClient::wait_and_handle(std::vector<Message>& messages) {
  std::optional<Clock::time_point> check_at;
  MessageSocket::Interest interest = socket_.interest();
  int process_handle = -1;
  {
    const std::lock_guard lock(mutex_);
    if (!kill_reason_.empty() && process_) return false;
    check_at = next_check();
    // A time that is no longer needed is kept until it has passed, so that not every call has to wake this thread.
    if (wakes_at_ && *wakes_at_ > Clock::now() && (!check_at || *check_at > *wakes_at_)) check_at = wakes_at_;
    wakes_at_ = check_at;
    process_handle = process_.handle();
  }
  int timeout_ms = interest.timeout_ms;
  if (check_at) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*check_at - Clock::now());
    const auto left_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    timeout_ms = timeout_ms < 0 ? left_ms : std::min(timeout_ms, left_ms);
  }
  // A host that has sent its own end of the socket here has no end of the stream: the process itself is watched too.
  pollfd waiting[] = {{socket_.fd(), interest.events, 0}, {socket_.wake_fd(), POLLIN, 0}, {process_handle, POLLIN, 0}};
  if (poll(waiting, 3, timeout_ms) < 0 && errno != EINTR) return false;
  if (waiting[1].revents != 0) socket_.clear_wake();
  socket_.flush();
  bool is_open = true;
  if (waiting[0].revents != 0) is_open = socket_.receive(messages, max_message_bytes());
  for (Message& message : messages) handle(message);
  messages.clear();
  if (check_at && Clock::now() >= *check_at) {
    const std::lock_guard lock(mutex_);
    check_times(Clock::now());
  }
  const bool has_ended = process_handle >= 0 ? waiting[2].revents != 0 : has_process_ended();
  return has_ended ? receive_rest(messages) : is_open;
}

bool HostClient::has_process_ended() const {
  const std::lock_guard lock(mutex_);
  return process_.has_ended();
}

// Handles what the host sent before it ended. Returns false.
bool HostClient::receive_rest(std::vector<Message>& messages) {
  for (int part = 0; part < kMaxRestOfMessages; ++part) {
    pollfd waiting{socket_.fd(), POLLIN, 0};
    if (poll(&waiting, 1, 0) <= 0) return false;
    const bool is_open = socket_.receive(messages, max_message_bytes());
    for (Message& message : messages) handle(message);
    messages.clear();
    if (!is_open) return false;
  }
  return false;
}

std::size_t HostClient::max_message_bytes() const {
  const std::lock_guard lock(mutex_);
  return max_message_bytes_;
}

std::shared_ptr<HostedVm> HostClient::find(std::uint64_t vm_id) const {
  const auto found = vms_.find(vm_id);
  if (found == vms_.end()) throw MalformedMessage("a message is about an unknown VM");
  return found->second;
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
  } else if (message.type == MessageType::keep_buffer) {
    const auto id = reader.get<std::uint64_t>();
    reader.end();
    const std::lock_guard lock(buffers_mutex_);
    if (keeps_left_-- == 0) throw MalformedMessage("more buffers are kept than calls have arguments in");
    if (buffers_in_host_.contains(id)) retire_shared(id);  // else it has ended meanwhile
  } else if (message.type == MessageType::hello) {
    Value value = reader.get_value(error_limits());
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
  std::shared_ptr<HostedVm> vm;
  {
    const std::lock_guard lock(mutex_);
    if (!vms_.contains(vm_id) && late_replies_ > 0) {  // the call was sent as its VM ended, and has been answered
      --late_replies_;
      return;
    }
    vm = find(vm_id);
  }
  const bool is_callback = reply.outcome == Outcome::callback;
  try {
    reply.text = reader.get_text(kMaxTextBytes);
    reply.value = reader.get_value(reply.outcome == Outcome::ok ? result_limits(vm->output_bytes_)
                                   : is_callback                ? callback_limits(vm->output_bytes_)
                                                                : error_limits());
    reader.end();
  } catch (const ReceiveFailure& failure) {
    reply = {reply.call_id, Outcome::not_received, {}, failure.what()};
  } catch (const std::bad_alloc&) {
    reply = {reply.call_id, Outcome::not_received, {}, "this process has too little memory"};
  }
  const std::lock_guard lock(mutex_);
  vm->calls_ = calls;
  if (is_callback && reply.outcome == Outcome::not_received) return refuse_callback(*vm, reply.call_id, reply.text);
  vm->receive(std::move(reply));
  if (retired_at_) socket_.wake();
}

// Answers a callback that was not received: the call waits for it. With mutex_ held.
void HostClient::refuse_callback(HostedVm& vm, std::uint64_t call_id, const std::string& why) {
  if (vm.find_call(call_id) == vm.calls_waiting_.end()) throw MalformedMessage("a callback of an unknown call");
  MessageWriter writer(MessageType::answer);
  writer.put(vm.id_).put(call_id).put(std::uint8_t{1});
  writer.put_value({Tuple{{text_value("MemoryError"), text_value("the callback could not be received: " + why)}}});
  socket_.send(writer.take());
}

void HostClient::handle_change(MessageReader& reader) {
  const auto vm_id = reader.get<std::uint64_t>();
  const auto kind = reader.get_enum(VmChange::Kind::ended);
  std::string text = reader.get_text(kMaxTextBytes);
  std::string reset_failure = reader.get_text(kMaxTextBytes);
  const auto leaked_bytes = std::clamp<std::int64_t>(reader.get<std::int64_t>(), 0, kMaxLeakedBytes);
  const auto create_ms = reader.get<double>();
  reader.end();
  const std::lock_guard lock(mutex_);
  const auto vm = find(vm_id);
  using State = HostedVm::State;
  const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(kind));
  if ((vm->changes_ & bit) != 0) throw MalformedMessage("a change of a VM that it has reported already");
  vm->changes_ |= bit;
  switch (kind) {
    case VmChange::Kind::opened:
      vm->create_ms_ = create_ms;
      if (vm->state_ == State::starting) vm->state_ = State::open;
      vm->begin_front();
      break;
    case VmChange::Kind::rejecting:
      if (vm->state_ == State::open) throw MalformedMessage("a VM that has started could not start");
      vm->state_ = State::closing;
      vm->closed_at_ = Clock::now();
      vm->reject_reason_ = std::move(text);
      break;
    case VmChange::Kind::abandoned:
      if (!vm->is_busy()) throw MalformedMessage("a VM was abandoned that runs nothing");
      vm->state_ = State::abandoned;
      vm->reject_reason_ = "the VM was abandoned: a call did not stop";
      vm->was_abandoned_ = true;
      vm->abandoned_at_ = Clock::now();
      break;
    case VmChange::Kind::ended:
      if (vm->state_ == State::open) throw MalformedMessage("a VM has ended that nobody closed");
      vm->reset_failure_ = std::move(reset_failure);
      vm->leaked_bytes_ = leaked_bytes;
      leaked_bytes_ += leaked_bytes;
      if (leaked_bytes_ >= kMaxLeakedBytes && !retired_at_) retired_at_ = Clock::now();
      late_replies_ += vm->calls_waiting_.size();
      vm->end(Outcome::closed, Outcome::closed, text.empty() ? vm->reject_reason_ : text);
      vms_.erase(vm_id);
      if (is_alone_ && kill_reason_.empty()) kill_reason_ = kWasClosed;
      break;
  }
  changed_.notify_all();
}

std::optional<HostClient::Clock::time_point> HostClient::next_check() const {
  std::optional<Clock::time_point> next;
  const auto consider = [&](Clock::time_point when) { next = next ? std::min(*next, when) : when; };
  bool is_busy = false;
  if (asked_at_) consider(*asked_at_ + times_.reply);
  for (const auto& [id, vm] : vms_) {
    if (const auto due = vm->reply_due()) consider(*due);
    if (const auto due = vm->retire_due(); due && !retired_at_) consider(*due);
    is_busy = is_busy || vm->is_needed();
  }
  if (retired_at_) consider(is_busy ? *retired_at_ + times_.retire : Clock::now());
  if (process_ && process_.handle() < 0) consider(Clock::now() + kLookTime);
  return next;
}

void HostClient::kill_unresponsive() {
  is_unresponsive_ = true;
  kill_reason_ = "was killed, because it did not answer a call in time";
}

void HostClient::check_times(Clock::time_point now) {
  if (!kill_reason_.empty()) return;
  if (asked_at_ && now >= *asked_at_ + times_.reply) return kill_unresponsive();
  bool is_busy = false;
  for (const auto& [id, vm] : vms_) {
    is_busy = is_busy || vm->is_needed();
    if (const auto due = vm->reply_due(); due && now >= *due) {
      if (std::exchange(vm->calls_waiting_.front().is_overdue, true)) return kill_unresponsive();
      if (!asked_at_) {
        asked_at_ = now;
        socket_.send(MessageWriter(MessageType::ping).take());
      }
    }
    if (const auto due = vm->retire_due(); due && now >= *due && !retired_at_) {
      retired_at_ = now;
      changed_.notify_all();
    }
  }
  if (retired_at_ && (!is_busy || now >= *retired_at_ + times_.retire))
    kill_reason_ = "was ended, because a call in it could not be stopped, or tasks leaked too much memory";
}

// Waits for the process to end, whose status somebody else takes, and says how it has.
HostEnd HostClient::describe_end(const std::string& violation) {
  HostEnd end;
  bool is_killed = false;
  {
    const std::lock_guard lock(mutex_);
    is_killed = !violation.empty() || !kill_reason_.empty();
    if (is_killed) process_.kill();
  }
  std::optional<ProcessEnd> found;
  bool runs_on = false;
  for (const auto until = Clock::now() + kExitTime;; std::this_thread::sleep_for(1ms)) {
    const std::lock_guard lock(mutex_);
    found = process_.end();
    if (found || !process_) break;
    if (Clock::now() > until) {
      runs_on = !process_.has_ended();  // the process closed its socket, and may still run
      if (runs_on) process_.kill();
      break;
    }
  }
  const std::lock_guard lock(mutex_);
  if (!violation.empty())
    end.reason = "the VM host was killed, because it broke its protocol: " + violation;
  else if (!kill_reason_.empty())
    end.reason = "the VM host " + kill_reason_;
  else
    end.reason = "the VM host " + (found ? describe(*found) : std::string("closed its socket"));
  // Until its hello no task's code has run. A signal that no code causes ends a host whose memory ran out, for one: the VMs that
  // ran may be the cause, and nobody is for certain.
  end.is_wanted = kill_reason_ == kWasClosed;
  end.is_suspicious = hello_ && (kill_reason_.empty() || is_unresponsive_ || !violation.empty());
  end.is_certain = end.is_suspicious && next_vm_ == 2 && (is_killed || runs_on || (found && is_own_fault(*found)));
  return end;
}

void HostClient::end(const HostEnd& end) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  end_reason_ = end.reason;
  const std::string frames = end.is_suspicious ? receive_frames(record_) : "";
  for (const auto& [id, vm] : vms_) {
    vm->was_crashed_ = end.is_certain && vm->is_busy();
    vm->was_suspected_ = end.is_suspicious && vm->is_busy();
    vm->is_lost_ = !end.is_wanted;
    if (vm->was_suspected_) {
      vm->last_ = read_place(record_, frames, id, vm->task_files_);
      if (ran_at_end_.size() < kMaxNamedVms) ran_at_end_.push_back(vm->describe_last());
    }
    const Outcome others = end.is_wanted ? Outcome::closed : Outcome::lost;
    vm->end(vm->was_crashed_ ? Outcome::crashed : others, others, end.reason);
  }
  vms_.clear();
  record_ = CrashRecordPort();
  socket_.close();
  changed_.notify_all();
}

}  // namespace walle::vm
