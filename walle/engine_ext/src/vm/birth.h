// How a VM's interpreter comes to be.
#pragma once
#include <Python.h>

#include <functional>
#include <string>

namespace walle::vm {

// Marshalled code of an empty module, which a VM gets in place of `site`, whose walk over site-packages it has no use for. The
// first one given stays.
void set_empty_site(std::string code);

// A new interpreter with its own GIL and allocator, no threads, no fork and only modules that are made for this; the calling
// thread holds its GIL. Null, and why, where there is none to be had, or where `wanted`, asked when its turn comes, says no.
PyThreadState* make_interpreter(const std::function<bool()>& wanted, std::string& error);

// In the child of a fork: whoever was making one is not there.
void birth_after_fork();

}  // namespace walle::vm
