// The test double: a shared library with the symbols of NVIDIA's driver and of NCCL that this
// project uses, over host memory. Streams are queues with a thread each, kernels are functions in
// them, communicators are files that the ranks map: ranks may be threads or processes.
//
// What a test tells it and asks it, by these names.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
extern "C" {
// One kernel at a time on each device, in the order in which they become ready: ranks that launch
// in different orders wait for each other for ever, as kernels that fill a GPU do.
void double_set_exclusive(int exclusive);
// Kernels of the device begin so much later.
void double_set_delay(int device, int microseconds);
// Kernels of the device that have not begun wait, until 0 is set.
void double_hold(int device, int hold);
// Communicators of the device are not done with launching what they were given, until 0 is set.
void double_keep_busy(int device, int keep);
// The next kernel of the device does not run: its communicator has this asynchronous error.
void double_fail_next(int device, int result);
// What the stream is given from now on waits, until 0 is set: as after a kernel that computes for
// long.
void double_block(void* stream, int block);
// There is no pinned memory but what was there before, until 0 is set.
void double_refuse_pinned(int refuse);
// All streams claim that a graph is being captured on them.
void double_set_capturing(int capturing);
// Communicators that have neither been destroyed nor aborted, and those aborted so far.
int double_live_communicators();
int double_aborted_communicators();
// Launches so far on the device, a line for each kernel: communicator's file, a space, and what was
// called, with a + in between where it was several. Returns the length of all.
size_t double_log(int device, char* out, size_t capacity);
}
#pragma GCC visibility pop
