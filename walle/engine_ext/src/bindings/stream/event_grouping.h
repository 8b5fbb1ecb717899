// The Python type EventGroups: events in groups, by fields or by windows of time.
#pragma once
#include "bindings/stream/event_objects.h"

namespace walle::columns {

extern PyType_Spec groups_spec;
// Returns a new reference, or a null pointer with a Python error.
PyObject* new_groups(std::shared_ptr<Batch> batch, stream::EventGroups groups);

}  // namespace walle::columns
