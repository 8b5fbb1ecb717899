#include "vm/hosted_vm.h"

#include <algorithm>
#include <utility>

#include "vm/call.h"

namespace walle::vm {

using namespace std::chrono_literals;

void HostedVm::submit(std::shared_ptr<ReplySink> replies, std::uint64_t call_id, std::string function, Value arguments,
                      std::optional<std::chrono::nanoseconds> deadline) {
  if (host_->is_in_child()) return replies->push({call_id, Outcome::closed, {}, HostClient::kForked});
  MessageWriter writer(MessageType::submit, host_.get());
  writer.put(id_).put(call_id).put<std::int64_t>(deadline ? deadline->count() : -1).put_text(function).put_value(arguments);
  const std::lock_guard lock(host_->mutex_);
  if (!accepts_calls())
    return replies->push({call_id, state_ == State::ended && is_lost_ ? Outcome::lost : Outcome::closed, {}, reject_reason_});
  calls_waiting_.push_back({call_id, std::move(replies), deadline, {}, writer.take_buffers()});
  try {
    host_->socket_.send(writer.take());
  } catch (...) {  // too large, or no memory: the host will never reply to it
    calls_waiting_.pop_back();
    throw;
  }
  if (calls_waiting_.size() == 1) begin_front();
  if (const auto due = reply_due(); due && (!host_->wakes_at_ || *due < *host_->wakes_at_)) host_->socket_.wake();
}

void HostedVm::close() {
  if (host_->is_in_child()) return;
  const std::lock_guard lock(host_->mutex_);
  if (!accepts_calls()) return;
  state_ = State::closing;
  closed_at_ = HostClient::Clock::now();
  reject_reason_ = kClosed;
  host_->socket_.send(MessageWriter(MessageType::close).put(id_).take());
  host_->socket_.wake();  // the reading thread has a time to look at
}

bool HostedVm::join(std::chrono::nanoseconds timeout) {
  if (host_->is_in_child()) return true;
  std::unique_lock lock(host_->mutex_);
  return host_->changed_.wait_for(lock, timeout, [&] { return state_ == State::ended; });
}

bool HostedVm::alive() const {
  if (host_->is_in_child()) return false;
  const std::lock_guard lock(host_->mutex_);
  return accepts_calls() && !host_->retired_at_;
}

void HostedVm::begin_front() {
  if (!calls_waiting_.empty()) calls_waiting_.front().began_at = HostClient::Clock::now();
}

void HostedVm::send_if_waiting(MessageType type, std::uint64_t call_id, const Value* value, bool is_error) {
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

std::deque<HostedVm::Waiting>::iterator HostedVm::find_call(std::uint64_t call_id) {
  return std::find_if(calls_waiting_.begin(), calls_waiting_.end(), [&](const Waiting& one) { return one.id == call_id; });
}

std::optional<HostClient::Clock::time_point> HostedVm::reply_due() const {
  if (calls_waiting_.empty() || !calls_waiting_.front().deadline || host_->waits_for_turn()) return std::nullopt;
  const auto start_time = state_ == State::starting ? HostClient::kStartTime : 0s;
  const Waiting& first = calls_waiting_.front();
  const auto due = first.began_at + *first.deadline + grace_ + start_time;
  return first.is_overdue ? due + kLoadTime + kImportTime + host_->times_.reply : due;
}

std::optional<HostClient::Clock::time_point> HostedVm::retire_due() const {
  if (abandoned_at_) return *abandoned_at_ + HostClient::kStuckTime;
  if (closed_at_ && !host_->waits_for_turn()) return *closed_at_ + host_->times_.close;
  return std::nullopt;
}

void HostedVm::receive(Reply reply) {
  const auto found = find_call(reply.call_id);
  if (found == calls_waiting_.end()) throw MalformedMessage("a reply to an unknown call");
  if (reply.outcome == Outcome::callback) {
    if (found->has_callback) throw MalformedMessage("a second callback of a call that waits for the first");
    found->has_callback = true;
    found->replies->push(std::move(reply));
    return;
  }
  const bool was_front = found == calls_waiting_.begin();
  const auto replies = std::move(found->replies);
  calls_waiting_.erase(found);
  if (was_front) begin_front();
  replies->push(std::move(reply));
}

void HostedVm::end(Outcome first, Outcome others, const std::string& why) {
  state_ = State::ended;
  reject_reason_ = why;
  bool is_first = true;
  for (const Waiting& call : calls_waiting_)
    call.replies->push({call.id, std::exchange(is_first, false) ? first : others, {}, why});
  calls_waiting_.clear();
}

std::string HostedVm::describe_last() const {
  std::string last = last_.phase;
  if (!last_.place.empty()) last += (last.empty() ? "" : ", ") + last_.place;
  return last.empty() ? name_ : name_ + " (" + last + ")";
}

}  // namespace walle::vm
