// The test double: a shared library with the symbols of NVIDIA's driver and of NCCL that this
// project uses, over host memory. Streams are queues with a thread each, kernels are functions in
// them, communicators are files that the ranks map: ranks may be threads or processes.
//
// The functions with which tests control and query it.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
extern "C" {
// One kernel at a time on each device, in the order in which they become ready: ranks that launch
// in different orders wait for each other for ever, as kernels that fill a GPU do.
void double_set_exclusive(int exclusive);
// Delays the start of the device's kernels.
void double_set_delay(int device, int microseconds);
// Kernels of the device that have not started wait until 0 is set.
void double_hold(int device, int hold);
// Communicators of the device do not finish their launches until 0 is set.
void double_keep_busy(int device, int keep);
// The next kernel of the device does not run: its communicator has this asynchronous error.
void double_fail_next(int device, int result);
// Later work on the stream waits until 0 is set, as after a long kernel.
void double_block(void* stream, int block);
// New pinned memory can't be allocated until 0 is set.
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
