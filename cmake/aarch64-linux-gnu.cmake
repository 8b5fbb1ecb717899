# Toolchain: 64-bit ARM Linux, built on another Debian and run there under QEMU's user mode (`make test-neon`).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

find_program(WALLE_ARM_CXX aarch64-linux-gnu-g++)
find_program(WALLE_ARM_QEMU qemu-aarch64)
if(NOT WALLE_ARM_CXX OR NOT WALLE_ARM_QEMU)
  message(FATAL_ERROR "The neon tests need aarch64-linux-gnu-g++ and qemu-aarch64, which Debian has in "
    "g++-aarch64-linux-gnu and qemu-user: apt-get install g++-aarch64-linux-gnu qemu-user")
endif()

set(CMAKE_CXX_COMPILER ${WALLE_ARM_CXX})
set(CMAKE_CROSSCOMPILING_EMULATOR ${WALLE_ARM_QEMU} -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
