// The test double: a shared library with the symbols of NVIDIA's driver and of NCCL that this
// project uses, over host memory. Streams are queues with a thread each, kernels are functions in
// them, communicators are files that the ranks map: ranks may be threads or processes.
//
// The functions with which tests control and query it.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
extern "C" {
// Each device runs one kernel at a time, in the order in which they become ready: ranks that launch
// in different orders deadlock, as with kernels that fill a GPU.
void double_set_exclusive(int exclusive);
// Delays the start of the device's kernels.
void double_set_delay(int device, int microseconds);
// Kernels of the device that have not started wait until this is set to 0.
void double_hold(int device, int hold);
// Communicators of the device do not finish their launches until this is set to 0.
void double_keep_busy(int device, int keep);
// The device's next kernel does not run: its communicator gets this asynchronous error.
void double_fail_next(int device, int result);
// Later work on the stream waits until this is set to 0, as after a long kernel.
void double_block(void* stream, int block);
// Allocating new pinned memory fails until this is set to 0.
void double_refuse_pinned(int refuse);
// All streams report that a graph is being captured on them.
void double_set_capturing(int capturing);
// Communicators that have neither been destroyed nor aborted, and those aborted so far.
int double_live_communicators();
int double_aborted_communicators();
// The device's launches so far, one line per kernel: the communicator's file, a space, and the
// calls, joined by +. Returns the length of the whole text.
size_t double_log(int device, char* out, size_t capacity);
}
#pragma GCC visibility pop
