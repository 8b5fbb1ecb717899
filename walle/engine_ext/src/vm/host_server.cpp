#include "vm/host_server.h"

#include <poll.h>
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "vm/interpreter_pool.h"
#include "vm/shared_memory.h"

namespace walle::vm {

namespace {

constexpr std::size_t kMaxMessageBytes = std::size_t{4} << 30 >> 1;  // the device is trusted

Descriptor open_parent() {
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
#else
  return Descriptor();
#endif
}

// An error as a callback's caller gets it.
Value error_value(const char* type, const std::string& text) { return {Tuple{{text_value(type), text_value(text)}}}; }

std::string explain(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "the VM host has too little memory";
  return error.what();
}

}  // namespace

// Sends the replies of one VM. A reply that cannot be sent, or that the device would refuse, fails its call.
class HostServer::Replies final : public ReplySink {
 public:
  Replies(std::shared_ptr<MessageSocket> socket, std::uint64_t vm_id, std::int64_t output_bytes)
      : socket_(std::move(socket)), vm_id_(vm_id), output_bytes_(output_bytes) {}
  void set_vm(const std::shared_ptr<TaskVm>& vm) { vm_ = vm; }

  // Takes note of the buffers in which a call has arguments, and has begun.
  void begin(std::uint64_t call_id, HostBuffers buffers) {
    const std::lock_guard lock(mutex_);
    buffers_[call_id] = std::move(buffers);
  }

  void push(Reply reply) override {
    if (reply.outcome != Outcome::callback) release_buffers(reply.call_id);
    try {
      send(reply);
    } catch (const std::exception& error) {  // too large, or no memory
      if (reply.outcome == Outcome::callback) {
        if (const auto vm = vm_.lock()) vm->answer(reply.call_id, error_value("ValueError", error.what()), true);
        return;
      }
      send({reply.call_id, Outcome::not_plain, {}, std::string("the result could not be sent: ") + error.what()});
    }
  }

 private:
  // Tells the device which buffers a task has kept, before the reply after which it would use them again.
  void release_buffers(std::uint64_t call_id) {
    HostBuffers buffers;
    {
      const std::lock_guard lock(mutex_);
      if (auto found = buffers_.extract(call_id)) buffers = std::move(found.mapped());
    }
    for (const auto& [id, buffer] : buffers)
      if (buffer->end_call()) socket_->send(MessageWriter(MessageType::keep_buffer).put(id).take());
  }

  void send(const Reply& reply) {
    const auto vm = vm_.lock();
    MessageWriter writer(MessageType::reply);
    writer.put(vm_id_).put(reply.call_id).put(reply.outcome).put(vm ? vm->calls() : std::uint64_t{0});
    writer.put_text(std::string_view(reply.text).substr(0, kMaxTextBytes)).put_value(reply.value);
    if (const std::size_t most = max_reply_bytes(output_bytes_); writer.size_bytes() > most)
      throw TooLarge("it takes " + std::to_string(writer.size_bytes()) + " bytes, of which " + std::to_string(most) +
                     " are possible; return less, or fewer and larger arrays");
    socket_->send(writer.take());
  }

  const std::shared_ptr<MessageSocket> socket_;
  const std::uint64_t vm_id_;
  const std::int64_t output_bytes_;
  std::weak_ptr<TaskVm> vm_;
  std::mutex mutex_;
  std::map<std::uint64_t, HostBuffers> buffers_;  // buffers of calls that have not ended
};

HostServer::HostServer(Descriptor socket, const ArrayPort& port)
    : socket_(std::make_shared<MessageSocket>(std::move(socket))), port_(port), parent_(open_parent()) {
#ifdef __linux__
  // For a host whose reading thread was taken over. It needs the device's thread that started the host to live as long.
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
#endif
}

bool HostServer::wait() {
  const MessageSocket::Interest interest = socket_->interest();
  pollfd waiting[] = {{socket_->fd(), interest.events, 0}, {socket_->wake_fd(), POLLIN, 0}, {parent_.get(), POLLIN, 0}};
  if (poll(waiting, 3, interest.timeout_ms) < 0) return errno == EINTR;
  if (waiting[1].revents != 0) socket_->clear_wake();
  if (waiting[2].revents != 0) return false;
  socket_->flush();
  return waiting[0].revents == 0 || socket_->receive(received_, kMaxMessageBytes);
}

Value HostServer::receive_config() {
  while (received_.empty())
    if (!wait()) throw std::runtime_error("the VM host's device has ended");
  Message message = std::move(received_.front());
  received_.erase(received_.begin());
  if (message.type != MessageType::config) throw std::runtime_error("the VM host's first message is not its configuration");
  MessageReader reader(message, port_);
  Value config = reader.get_value({});
  if (reader.get<std::uint8_t>() != 0) {
    CrashRecordPort port;
    port.memory = above_standard(reader.get_descriptor());
    port.frames = above_standard(reader.get_descriptor());
    record_ = std::make_unique<CrashRecord>(std::move(port));
  }
  return config;
}

std::vector<int> HostServer::descriptors() const {
  std::vector<int> all = socket_->descriptors();
  if (parent_) all.push_back(parent_.get());
  return all;
}

void HostServer::send_hello(const Value& value) { socket_->send(MessageWriter(MessageType::hello).put_value(value).take()); }

void HostServer::serve() {
  do {
    std::vector<Message> messages;
    messages.swap(received_);
    for (Message& message : messages) handle(message);
    remove_ended();
  } while (wait());
  abort();  // exit would run destructors while VMs run
}

TaskVm* HostServer::find(std::uint64_t vm_id) const {
  const auto found = vms_.find(vm_id);
  return found == vms_.end() ? nullptr : found->second.vm.get();
}

void HostServer::handle(Message& message) {
  if (message.type == MessageType::ping) return socket_->send(MessageWriter(MessageType::pong).take());
  MessageReader reader(message, port_);
  if (message.type == MessageType::modules) {
    Value modules = reader.get_value({});
    auto& dict = std::get<Dict>(modules.data);
    for (std::size_t i = 0; i < dict.keys.size(); ++i)
      InterpreterPool::instance().register_module(std::get<Text>(dict.keys[i].data).utf8, std::move(dict.values[i]));
    return;
  }
  if (message.type == MessageType::files) return take_files(reader);
  if (message.type == MessageType::start) return start_vm(reader);
  if (message.type == MessageType::buffer) return take_buffer(reader);
  if (message.type == MessageType::drop_buffer) {
    buffers_.erase(reader.get<std::uint64_t>());
    return;
  }
  if (message.type == MessageType::submit) return submit(message);
  const auto vm_id = reader.get<std::uint64_t>();
  if (message.type == MessageType::close) files_.erase(vm_id);  // the VM may not have started
  TaskVm* vm = find(vm_id);
  if (vm == nullptr) return;  // the VM has ended meanwhile
  switch (message.type) {
    case MessageType::cancel: return vm->cancel(reader.get<std::uint64_t>());
    case MessageType::close: return vm->close();
    case MessageType::answer: {
      const auto call_id = reader.get<std::uint64_t>();
      const bool is_error = reader.get<std::uint8_t>() != 0;
      try {
        return vm->answer(call_id, reader.get_value({}), is_error);
      } catch (const std::exception& error) {
        return vm->answer(call_id, error_value("MemoryError", explain(error)), true);
      }
    }
    default: throw MalformedMessage("the device sent a message of the host's");
  }
}

// A buffer that cannot be mapped fails the calls that have arguments in it, and is not used again: the next array's may be
// mapped.
void HostServer::take_buffer(MessageReader& reader) {
  const auto id = reader.get<std::uint64_t>();
  const auto size_bytes = static_cast<std::size_t>(reader.get<std::uint64_t>());
  std::shared_ptr<Storage> memory;
  try {
    memory = map_shared_buffer(reader.get_descriptor(), size_bytes);
  } catch (const ReceiveFailure&) {  // this process has no descriptor left
  }
  if (memory == nullptr) return socket_->send(MessageWriter(MessageType::keep_buffer).put(id).take());
  buffers_[id] = std::make_shared<HostBuffer>(std::move(memory));
}

// Maps the files, of which no descriptor stays open. One that cannot be mapped fails the start of its VM.
void HostServer::take_files(MessageReader& reader) {
  Files& files = files_[reader.get<std::uint64_t>()];
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) {
    std::string path = reader.get_text();
    std::shared_ptr<Storage> storage;
    std::string why = "its file system does not allow it";
    try {
      storage = map_file_bytes(reader.get_descriptor());
    } catch (const ReceiveFailure& error) {
      why = error.what();
    }
    if (storage == nullptr) {
      files.failure = "the resource " + path + " cannot be mapped: " + why;
      reader.skip();
      return;
    }
    const auto size = static_cast<std::int64_t>(storage->size_bytes());
    files.mapped.keys.push_back(text_value(std::move(path)));
    files.mapped.values.push_back({Tensor(storage, DType::u8, {size}, {1}, 0)});
  }
}

void HostServer::start_vm(MessageReader& reader) {
  const auto vm_id = reader.get<std::uint64_t>();
  Settings settings;
  settings.name = reader.get_text();
  settings.grace = std::chrono::milliseconds(reader.get<std::int64_t>());
  settings.memory_bytes = reader.get<std::int64_t>();
  settings.output_bytes = reader.get<std::int64_t>();
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) settings.task_files.insert(reader.get_text());
  settings.config = reader.get_value({});
  if (const auto found = files_.find(vm_id); found != files_.end()) {
    auto& config = std::get<Dict>(settings.config.data);
    for (std::size_t i = 0; i < config.keys.size(); ++i) {
      if (std::get<Text>(config.keys[i].data).utf8 != "files") continue;
      auto& files = std::get<Dict>(config.values[i].data);
      Dict& mapped = found->second.mapped;
      std::move(mapped.keys.begin(), mapped.keys.end(), std::back_inserter(files.keys));
      std::move(mapped.values.begin(), mapped.values.end(), std::back_inserter(files.values));
    }
    const std::string failure = std::move(found->second.failure);
    files_.erase(found);
    if (!failure.empty()) return send_change(vm_id, {.kind = VmChange::Kind::ended, .text = failure});
  }
  settings.on_change = [this, vm_id](const VmChange& change) { send_change(vm_id, change); };
  if (record_) settings.place_entry = record_->take(vm_id);
  try {
    auto replies = std::make_shared<Replies>(socket_, vm_id, settings.output_bytes);
    auto vm = TaskVm::start(std::move(settings), port_);
    replies->set_vm(vm);
    vms_[vm_id] = {std::move(vm), std::move(replies)};
  } catch (const std::runtime_error& error) {
    send_change(vm_id, {.kind = VmChange::Kind::ended, .text = error.what()});
  }
}

void HostServer::submit(Message& message) {
  MessageReader reader(message, port_, &buffers_);
  const auto vm_id = reader.get<std::uint64_t>();
  const auto call_id = reader.get<std::uint64_t>();
  const auto deadline_ns = reader.get<std::int64_t>();
  std::string function = reader.get_text();
  const auto found = vms_.find(vm_id);
  if (found == vms_.end()) return Replies(socket_, vm_id, 0).push({call_id, Outcome::closed, {}, "the VM has ended"});
  Value arguments;
  try {
    arguments = reader.get_value({});
  } catch (const std::exception& error) {
    found->second.replies->begin(call_id, reader.take_used_buffers());  // the arrays before the one that failed are in use
    return found->second.replies->push(
        {call_id, Outcome::not_plain, {}, "the arguments could not be received: " + explain(error)});
  }
  std::optional<std::chrono::nanoseconds> deadline;
  if (deadline_ns >= 0) deadline = std::chrono::nanoseconds(deadline_ns);
  found->second.replies->begin(call_id, reader.take_used_buffers());
  found->second.vm->submit(found->second.replies, call_id, std::move(function), std::move(arguments), deadline);
}

void HostServer::send_change(std::uint64_t vm_id, const VmChange& change) {
  MessageWriter writer(MessageType::change);
  writer.put(vm_id).put(change.kind).put_text(std::string_view(change.text).substr(0, kMaxTextBytes));
  writer.put_text(std::string_view(change.reset_failure).substr(0, kMaxTextBytes));
  writer.put(change.leaked_bytes).put(change.create_ms);
  socket_->send(writer.take());
  if (change.kind != VmChange::Kind::ended) return;
  const std::lock_guard lock(ended_mutex_);
  ended_.push_back(vm_id);
  socket_->wake();
}

void HostServer::remove_ended() {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(ended_mutex_);
    ended.swap(ended_);
  }
  for (const std::uint64_t vm_id : ended) {
    vms_.erase(vm_id);
    if (record_) record_->release(vm_id);
  }
}

}  // namespace walle::vm
