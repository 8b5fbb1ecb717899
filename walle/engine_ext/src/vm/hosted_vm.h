// A VM in the VM host, as the device sees it: its calls, and what it and its host are known to have done.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "vm/host_client.h"
#include "vm/message.h"
#include "vm/virtual_machine.h"

namespace walle::vm {

// Its fields are guarded by the client's mutex.
class HostedVm final : public VirtualMachine {
 public:
  HostedVm(std::shared_ptr<HostClient> host, std::uint64_t id, const Settings& settings)
      : host_(std::move(host)),
        id_(id),
        name_(settings.name),
        task_files_(settings.task_files),
        grace_(settings.grace),
        output_bytes_(settings.output_bytes) {}

  void submit(std::shared_ptr<ReplySink> replies, std::uint64_t call_id, std::string function, Value arguments,
              std::optional<std::chrono::nanoseconds> deadline) override;
  void cancel(std::uint64_t call_id) override { send_if_waiting(MessageType::cancel, call_id, nullptr, false); }
  void answer(std::uint64_t call_id, Value value, bool is_error) override {
    send_if_waiting(MessageType::answer, call_id, &value, is_error);
  }
  void close() override;
  bool join(std::chrono::nanoseconds timeout) override;

  bool alive() const override;
  bool was_abandoned() const override { return read(was_abandoned_); }
  bool was_crashed() const override { return read(was_crashed_); }
  bool was_suspected() const override { return read(was_suspected_); }
  TaskPlace last_place() const override { return read(last_); }
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
    HostClient::Clock::time_point began_at;         // latest possible begin of the first call
    std::vector<std::shared_ptr<Storage>> buffers;  // memory of its arguments, in use until the reply
    bool has_callback = false;                      // the VM waits for an answer
    bool is_overdue = false;                        // the host was asked whether it runs
  };

  template <class T>
  T read(const T& field) const {
    if (host_->is_in_child()) return {};
    const std::lock_guard lock(host_->mutex_);
    return field;
  }
  void send_if_waiting(MessageType type, std::uint64_t call_id, const Value* value, bool is_error);

  // With the mutex held.
  bool accepts_calls() const { return state_ == State::starting || state_ == State::open; }
  std::deque<Waiting>::iterator find_call(std::uint64_t call_id);
  void begin_front();
  // Whether it runs a call, or what its task left: a finalizer that crashes or does not stop counts against the task.
  bool is_busy() const { return !calls_waiting_.empty() || state_ == State::closing; }
  // Whether a host that is to end waits for it: its first call comes soon after its creation.
  bool is_needed() const { return is_busy() || state_ == State::starting; }
  // When the first call's reply is due; once it is overdue, when the host must have sent it, however long it loads.
  std::optional<HostClient::Clock::time_point> reply_due() const;
  // Returns when the host is to be retired for what this VM does.
  std::optional<HostClient::Clock::time_point> retire_due() const;
  void receive(Reply reply);
  // Returns its name, and what it was doing as its host ended.
  std::string describe_last() const;
  // The VM has ended, or its host; `first` is the outcome of the first call.
  void end(Outcome first, Outcome others, const std::string& why);

  const std::shared_ptr<HostClient> host_;
  const std::uint64_t id_;
  const std::string name_;
  const std::unordered_set<std::string> task_files_;
  const std::chrono::milliseconds grace_;
  const std::int64_t output_bytes_;
  State state_ = State::starting;
  std::string reject_reason_;
  bool is_lost_ = false;      // the host ended
  std::uint8_t changes_ = 0;  // reported so far: a bit for each kind
  std::deque<Waiting> calls_waiting_;
  bool was_abandoned_ = false;
  bool was_crashed_ = false;
  bool was_suspected_ = false;
  TaskPlace last_;  // the call's place, if the VM is suspected
  std::optional<HostClient::Clock::time_point> closed_at_;
  std::optional<HostClient::Clock::time_point> abandoned_at_;
  std::string reset_failure_;
  std::int64_t leaked_bytes_ = 0;
  std::uint64_t calls_ = 0;
  double create_ms_ = 0;
};

}  // namespace walle::vm
