// Memory of a batch's encoded payloads: bytearray objects that the next batch uses again.
#pragma once
#include <Python.h>

#include <cstddef>
#include <vector>

namespace walle {

// Python's sqlite3 binds a bytearray without looking for an adapter, so that an encoded payload goes into its statements as it
// is. New objects would be 1,000 allocations a transaction, whose pages malloc returns and the kernel clears each time.
class PayloadPool {
 public:
  PayloadPool() = default;
  ~PayloadPool();
  PayloadPool(const PayloadPool&) = delete;
  PayloadPool& operator=(const PayloadPool&) = delete;

  // Returns a bytearray of `size` bytes, whose contents are undefined: a new reference, or a null pointer with a Python error.
  PyObject* take(std::size_t size);
  // Takes over a reference to a bytearray, and keeps it if nothing else refers to it.
  void give(PyObject* payload) noexcept;

 private:
  static constexpr std::size_t kMaxPayloadBytes = 8192, kMaxKeptBytes = 2 << 20;

  std::vector<PyObject*> kept_;
  std::size_t kept_bytes_ = 0;  // allocated by those in kept_
};

}  // namespace walle
