// The Python type EventView: events of a batch by their rows, with selections and columns.
#pragma once
#include "bindings/stream/event_objects.h"

namespace walle::columns {

extern PyType_Spec view_spec;
// Both return a new reference, or a null pointer with a Python error.
PyObject* new_view(std::shared_ptr<Batch> batch, Rows rows);
PyObject* view_of_batch(Types types, std::shared_ptr<const EventBatch> events);

}  // namespace walle::columns
