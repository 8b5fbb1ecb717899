// Calls of a task VM, on its thread.
#include <new>
#include <utility>

#include "vm/array_loans.h"
#include "vm/call.h"
#include "vm/interpreter.h"
#include "vm/message.h"
#include "vm/task_vm.h"

namespace walle::vm {

// From here on the call can be stopped.
void TaskVm::make_current(const std::shared_ptr<Call>& call) {
  current_ = call;
  has_exceeded_memory_ = false;
  failed_at_.clear();
  heap_->stopping = false;
  if (call->deadline) set_deadline(call, Watchdog::Clock::now() + *call->deadline);
}

void TaskVm::run_call(Call& call) {
  Reply reply = perform(call);
  calls_.fetch_add(1, std::memory_order_relaxed);
  finish(call, std::move(reply));
}

Reply TaskVm::perform(Call& call) {
  Reply reply{call.id, Outcome::ok, {}, ""};
  enter_phase(std::string_view(call.function).substr(call.function.find(':') + 1), nullptr);
  PyObject* arguments = to_python(call.arguments, port_);
  call.arguments = {};  // only the task has its arrays now
  PyObject* name = arguments != nullptr
                       ? PyUnicode_FromStringAndSize(call.function.data(), static_cast<Py_ssize_t>(call.function.size()))
                       : nullptr;
  PyObject* result = name != nullptr ? PyObject_CallFunctionObjArgs(interpreter_->dispatch, name, arguments, nullptr) : nullptr;
  Py_XDECREF(name);
  Py_XDECREF(arguments);
  if (result == nullptr) return describe_failure(call.id);
  try {
    reply.value = from_python(result, port_, "result", output_limits());
  } catch (const TooLarge& error) {
    reply.outcome = Outcome::limit;
    reply.value = text_value("output_kb");
    reply.text = error.what();
  } catch (const NotPlain& error) {
    reply.outcome = Outcome::not_plain;
    reply.text = error.what();
  } catch (const std::bad_alloc&) {
    reply.outcome = Outcome::not_plain;
    reply.text = "the result needs more memory than is free";
  }
  Py_DECREF(result);
  PyErr_Clear();  // a stop that arrived while the result was read
  return reply;
}

Reply TaskVm::describe_failure(std::uint64_t call_id) {
  Reply reply{call_id, Outcome::failed, {}, ""};
  PyObject* error = PyErr_GetRaisedException();
  const char* limit = has_exceeded_memory_                                       ? "memory_mb"
                      : PyErr_GivenExceptionMatches(error, PyExc_RecursionError) ? "recursion"
                                                                                 : nullptr;
  if (limit != nullptr) {  // reported from C++, because the description is Python code, which may be stopped
    reply.outcome = Outcome::limit;
    reply.value = text_value(limit);
    reply.text = place_of(error);
    Py_DECREF(error);
    return reply;
  }
  failed_at_ = place_of(error);  // the place: the description may be stopped
  PyObject* description = PyObject_CallFunctionObjArgs(interpreter_->describe, error, nullptr);
  if (description != nullptr) {
    try {
      reply.value = from_python(description, port_, "error", error_limits());
    } catch (const NotPlain& refusal) {
      reply.text = refusal.what();
    }
  } else {
    reply.text = std::string(Py_TYPE(error)->tp_name) + ", whose description failed with " + take_error_text();
  }
  Py_XDECREF(description);
  Py_XDECREF(error);
  PyErr_Clear();
  return reply;
}

Limits TaskVm::output_limits() const {
  Limits limits;
  limits.all_bytes = settings_.output_bytes;
  return limits;
}

// Ends the call for the stopper and the watchdog, waits until no stopper has a thread state here, and replies.
void TaskVm::finish(Call& call, Reply reply) {
  PyThreadState* saved = PyEval_SaveThread();
  bool was_stopped = false;
  {
    std::unique_lock lock(mutex_);
    call.ended = true;
    is_reraising_ = false;
    if (call.alarm) Watchdog::instance().clear(*call.alarm);
    was_stopped = call.stop_reason.has_value();
    if (has_exceeded_memory_ && reply.outcome != Outcome::limit &&
        !was_stopped)  // the task caught the MemoryError; exceeding the limit still fails the call
      reply = {call.id, Outcome::limit, text_value("memory_mb"), ""};
    if (was_stopped) {
      changed_.notify_all();
      changed_.wait(lock, [&] { return !has_stopper_; });
      if (reply.outcome == Outcome::limit && !reply.text.empty()) call.place = reply.text;
      if (call.place.empty()) call.place = failed_at_;  // the call ended before the stopper could look
      reply = stopped_reply(call);
    }
    heap_->stopping = false;
    current_.reset();
  }
  PyEval_RestoreThread(saved);
  if (was_stopped) PyThreadState_SetAsyncExc(interpreter_->thread_id, nullptr);
  ArrayLoans::current()->release_ended();
  // Not under the mutex: a sink may encode the reply, which takes long for large arrays. A call that has ended is not abandoned
  // any more, so that nothing else answers it.
  bool is_answered = false;
  {
    const std::lock_guard lock(mutex_);
    is_answered = call.answered;
  }
  if (!is_answered && call.replies) call.replies->push(std::move(reply));
}

PyObject* TaskVm::call_back(PyObject* name, PyObject* arguments, bool& is_error) {
  // Only this thread changes current_. A VM that ends runs finalizers in a call that has no caller.
  if (!current_ || !current_->replies) {
    PyErr_SetString(PyExc_RuntimeError, "there is no caller whose callbacks could be called");
    return nullptr;
  }
  Value request;
  try {
    Tuple pair;
    Limits name_limits;
    name_limits.all_bytes = static_cast<std::int64_t>(kMaxNameBytes);
    pair.items.push_back(from_python(name, port_, "name", name_limits));
    pair.items.push_back(from_python(arguments, port_, "arguments", output_limits()));
    request.data = std::move(pair);
  } catch (const NotPlain& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
    return nullptr;
  }
  PyThreadState* saved = PyEval_SaveThread();
  std::optional<std::pair<Value, bool>> result;
  bool is_stopped = false;
  {
    const std::lock_guard lock(mutex_);
    current_->callback_result.reset();
    is_stopped = current_->stop_reason.has_value();
  }
  if (!is_stopped) current_->replies->push({current_->id, Outcome::callback, std::move(request), ""});
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return current_->callback_result || current_->stop_reason; });
    result.swap(current_->callback_result);
  }
  PyEval_RestoreThread(saved);
  if (!result) {
    raise_stopped("the call was stopped while it waited for a callback");
    return nullptr;
  }
  is_error = result->second;
  return to_python(result->first, port_);
}

}  // namespace walle::vm
