// The native module `_core`. Every VM loads its own Python objects of it (own GIL, own types); the C++ state is shared.
#include "bindings/bind.h"
#include "bindings/deploy/places.h"
#include "bindings/store/row_batch.h"
#include "bindings/stream/event_columns.h"
#include "bindings/stream/stream_types.h"
#include "bindings/tunnel/upload_queue.h"
#include "bindings/tunnel/upload_scan.h"
#include "stream/memory.h"

PYBIND11_MODULE(_core, module, pybind11::multiple_interpreters::per_interpreter_gil()) {
  module.doc() = "The compute container's native core (§4).";
  walle::bind_errors(module);
  walle::bind_tensor(module);
  walle::bind_dtype(module);
  walle::bind_ndarray(module);
  walle::bind_operators(module);
  walle::bind_recording(module);
  walle::bind_array_functions(module);
  walle::bind_ufunc(module);
  walle::bind_search(module);
  walle::bind_graph(module);
  walle::bind_session(module);
  walle::bind_files(module);
  walle::bind_fourier(module);
  walle::bind_vm(module);
  // Set once, before any VM.
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
    // PyMem_Raw counts what a VM's thread allocates.
    walle::stream::memory_functions() = {PyMem_RawMalloc, PyMem_RawFree};
    // Else the first VM that imports this module clears a pointer which other threads read without a lock, and a null
    // one ends the process (pybind11 issue 6174).
    pybind11::detail::has_seen_non_main_interpreter() = true;
  }
  if (walle::add_event_columns(module.ptr()) < 0) throw pybind11::error_already_set();
  // Events are matched, outputs stored, uploads received and profiles answered outside VMs; task code gets no types that
  // protect_types.h does not cover.
  if (PyInterpreterState_Get() == PyInterpreterState_Main() &&
      (walle::add_stream_types(module.ptr()) < 0 || walle::add_store_types(module.ptr()) < 0 ||
       walle::add_tunnel_functions(module.ptr()) < 0 || walle::add_upload_queue_types(module.ptr()) < 0 ||
       walle::add_places_type(module.ptr()) < 0))
    throw pybind11::error_already_set();
}
