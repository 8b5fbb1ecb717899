// Messages between a device's process and its VM host: fields, values and arrays as bytes in this machine's order, and large
// arrays as sealed shared memory beside them. What is read may be hostile: each count and size is checked before it is used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "vm/descriptor.h"
#include "vm/shared_buffers.h"
#include "vm/value.h"

namespace walle::vm {

enum class MessageType : std::uint8_t {
  // From the device to the host.
  config,   // value, has_record; descriptors: the crash record's memory and frames, where there is one. The first message
  modules,  // value: dict of modules for every VM
  files,    // vm, count, paths; one descriptor each
  start,    // vm, name, grace_ms, memory_bytes, output_bytes, task files, value: the VM's config
  submit,   // vm, call, deadline_ns (-1: none), function, value: arguments
  cancel,   // vm, call
  answer,   // vm, call, is_error, value
  close,    // vm
  ping,     // answered by a pong at once
  // From the host to the device.
  hello,   // value: what the host reports of itself
  reply,   // vm, call, outcome, calls, text, value
  change,  // vm, kind, text, reset_failure, leaked_bytes, create_ms
  pong,
  // From the host: id: a task keeps an array in the buffer after the call that is replied to next, or it could not be mapped.
  // At most one for each argument in a buffer, and for each buffer.
  keep_buffer,
  // From the device.
  buffer,       // id, size; descriptor: memory of arrays, to be mapped
  drop_buffer,  // id
};
inline constexpr std::uint8_t kMessageTypes = 16;

// Descriptors that one message may carry; the system's limit is 253.
inline constexpr std::size_t kMaxDescriptors = 64;
// Arrays of this size and larger cross as shared memory. Smaller ones cross faster through the socket, whose memory is warm.
inline constexpr std::int64_t kSharedArrayBytes = std::int64_t{1} << 20;
// All arrays of one message, which the limit of a result without [limits] is.
inline constexpr std::int64_t kMaxArrayBytes = std::int64_t{2} << 30;

struct Message {
  MessageType type = MessageType::config;
  std::string body;
  std::vector<Descriptor> descriptors;
  bool is_cut = false;  // the rest of it was dropped, because this process lacks memory or descriptors
};

// The largest message with a result, or with a callback's arguments, of a VM whose results may have `output_bytes` (0: no limit).
// The host checks it before it sends, the device before it reads.
std::size_t max_reply_bytes(std::int64_t output_bytes) noexcept;
// Limits of the values in such messages: of a result, of a pair of a callback's name and arguments, and of an error.
Limits result_limits(std::int64_t output_bytes) noexcept;
Limits callback_limits(std::int64_t output_bytes) noexcept;
Limits error_limits() noexcept;
inline constexpr std::size_t kMaxNameBytes = std::size_t{4} << 10;   // limit of a callback's name
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;  // limit of a message's text

// A message that its sender could not have meant. The message says what is wrong.
class MalformedMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A message, or memory that it refers to, for which this process lacks memory or descriptors. The sender is not to blame.
class ReceiveFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Brings shared buffers to the other end before a message that refers to them.
class BufferSender {
 public:
  virtual ~BufferSender() = default;
  // Returns false where that is not possible: the array crosses as bytes.
  virtual bool send_buffer(const SharedRange& range) = 0;
};

// A shared buffer in a VM host, and the number of calls there that have arguments in it.
class HostBuffer {
 public:
  explicit HostBuffer(std::shared_ptr<Storage> mapped) : memory(std::move(mapped)) {}
  // Counts a call, before its first argument in the buffer exists: while one is read, the call of another VM may end.
  void begin_call() {
    const std::lock_guard lock(mutex_);
    ++calls_;
  }
  // Ends a call whose arguments are released. Returns whether a task keeps the buffer although no call has arguments in it.
  bool end_call() {
    const std::lock_guard lock(mutex_);
    return --calls_ == 0 && memory.use_count() > 1;
  }

  const std::shared_ptr<Storage> memory;

 private:
  std::mutex mutex_;
  int calls_ = 0;
};
using HostBuffers = std::map<std::uint64_t, std::shared_ptr<HostBuffer>>;

class MessageWriter {
 public:
  // Without a sender no array crosses in a shared buffer.
  explicit MessageWriter(MessageType type, BufferSender* buffers = nullptr) : buffers_(buffers) { message_.type = type; }

  template <class T>
  MessageWriter& put(T number) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    message_.body.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  MessageWriter& put_text(std::string_view text);
  // Throws NotPlain where the value's arrays exceed kMaxArrayBytes, and std::bad_alloc.
  MessageWriter& put_value(const Value& value);
  MessageWriter& put_descriptor(Descriptor descriptor);
  std::size_t size_bytes() const { return message_.body.size(); }
  Message take() { return std::move(message_); }
  // Returns the memory of the shared buffers that the message refers to.
  std::vector<std::shared_ptr<Storage>> take_buffers() { return std::move(in_buffers_); }

 private:
  void put_items(const Items& items);
  void put_tensor(const Tensor& tensor);

  Message message_;
  BufferSender* const buffers_;
  std::vector<std::shared_ptr<Storage>> in_buffers_;
  std::int64_t array_bytes_ = 0;
};

// Reads the fields of a message in order. Every function throws MalformedMessage where the bytes do not hold what is asked for,
// and ReceiveFailure where the message was cut before it, or shared memory cannot be mapped.
class MessageReader {
 public:
  // `buffers` are those that arrays of the message may be in.
  MessageReader(Message& message, const ArrayPort& port, const HostBuffers* buffers = nullptr)
      : message_(message), port_(port), buffers_(buffers) {}

  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T number;
    std::memcpy(&number, take(sizeof number), sizeof number);
    return number;
  }
  // Returns an enumerator up to `last`.
  template <class T>
  T get_enum(T last) {
    const auto number = get<std::underlying_type_t<T>>();
    if (number > static_cast<std::underlying_type_t<T>>(last)) fail("has an unknown code");
    return static_cast<T>(number);
  }
  std::string get_text(std::size_t max_bytes = std::size_t{256} << 20);
  // A value beyond the limits is malformed.
  Value get_value(const Limits& limits);
  Descriptor get_descriptor();
  // Returns the buffers in which arrays of the value are, by number. A call has begun in each of them, also where the value could
  // not be read.
  HostBuffers take_used_buffers() { return std::move(used_buffers_); }
  // Ignores what is left.
  void skip() noexcept;
  // Checks that nothing is left.
  void end() const;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void check_whole() const;
  const char* take(std::size_t size);
  std::size_t get_size(std::size_t item_bytes);
  Value read_value(int depth);
  Encoded read_encoded();
  Items read_items(int depth, std::size_t count);
  enum class Place : std::uint8_t { message, descriptor, buffer };
  Tensor read_tensor(Place place);
  std::shared_ptr<Storage> read_range(std::size_t size_bytes, DType dtype);
  void count_bytes(std::size_t size);

  Message& message_;
  const ArrayPort& port_;
  const HostBuffers* const buffers_;
  HostBuffers used_buffers_;
  std::size_t position_ = 0;
  std::size_t next_descriptor_ = 0;
  Limits limits_;
  std::int64_t nodes_ = 0;
  std::int64_t all_bytes_ = 0;
};

}  // namespace walle::vm
