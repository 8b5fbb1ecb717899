// Places of devices in releases under way (§6), for a gateway: all that a decision needs in one call.
//
// Places(releases, below)
//   Draws, numbered from 0: the name of a release, as bytes, and the places of it that are covered: those below a number of 2^53.
//   first(device_id, groups)
//     `device_id` is its bytes. `groups` are draws: for each a 32-bit number in the machine's order, twice its number, and one
//     more for the last draw of a group. Returns a byte for each group: at which of its draws the device is covered first, or how
//     many draws the group has. A group has 255 draws at most.
//
// The place is the first 53 bits of BLAKE2b("RELEASE NUL DEVICE"), as walle.trust.audience says
// (docs/adr/0008-targeting.md).
#pragma once
#include <Python.h>

namespace walle {

// Adds the type to the module; returns 0, or -1 with a Python error.
int add_places_type(PyObject* module);

}  // namespace walle
