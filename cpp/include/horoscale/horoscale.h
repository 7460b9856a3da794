/* horoscale's C ABI: the only interface between framework bindings and the runtime.
 *
 * Conventions
 *   1. Every function that can fail returns an hs_code. After a failure, hs_error() describes it in
 *      the thread that made the call, until that thread's next call. A null argument that is not
 *      documented as optional, and a number that is not a value of its enumeration, are
 *      HS_INVALID_ARGUMENT.
 *   2. Handles are opaque. The function named with the constructor frees its result; freeing null
 *      is allowed. A handle may be used by one thread at a time, a runtime by any number of
 *      threads.
 *   3. Structures that the caller fills in begin with their own size (sizeof). Zero them before
 *      filling them in. If they grow, the library continues to accept the sizes of earlier headers
 *      of its ABI version and treats missing fields as zero. Unknown sizes are rejected.
 *   4. "Collective" means that every member of the process set must make the same call; "local"
 *      means that no other rank is involved. Only functions marked "blocks" wait.
 *   5. Strings are UTF-8 and NUL-terminated. A returned string is owned by the library unless
 *      the function says otherwise.
 *   6. After fork(), the child's copy of a runtime is inert: every call returns HS_NOT_INITIALIZED.
 */
#ifndef HOROSCALE_HOROSCALE_H_
#define HOROSCALE_HOROSCALE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every binding compares it with hs_abi_version() at run time. Incremented by each incompatible
 * change. */
#define HS_ABI_VERSION 4

/* All other symbols of the library are hidden. */
#pragma GCC visibility push(default)

/* cffi reads the declarations between this marker … */
/* [declarations] */

typedef enum hs_code {
  HS_OK = 0,
  HS_INVALID_ARGUMENT = 1, /* invalid, as detected by this rank alone */
  HS_NOT_INITIALIZED = 2,  /* in a forked child */
  HS_MISMATCH = 3,       /* the members' requests contradict each other; the runtime stays usable */
  HS_DUPLICATE_NAME = 4, /* an operation with this name is pending on the set */
  HS_RANK_FAILED = 5,    /* a rank failed or left; its process sets are unusable */
  HS_SHUTDOWN = 6,       /* hs_shutdown() was called here */
  HS_TIMEOUT = 7,
  HS_UNAUTHENTICATED = 8, /* wrong or missing secret */
  HS_SYSTEM = 9,          /* the operating system refused */
  HS_PROTOCOL = 10,       /* a peer sent invalid data */
  HS_UNIMPLEMENTED = 11,  /* not in this build */
  HS_INTERNAL = 12,       /* a bug in horoscale */
  HS_UNSUPPORTED = 13,    /* the operation is not defined for this operator or element type */
  HS_JOINED = 14          /* the operation needs a rank that has called join */
} hs_code;

typedef enum hs_dtype {
  HS_UINT8 = 0,
  HS_INT8 = 1,
  HS_UINT16 = 2,
  HS_INT16 = 3,
  HS_INT32 = 4,
  HS_INT64 = 5,
  HS_FLOAT16 = 6,
  HS_BFLOAT16 = 7,
  HS_FLOAT32 = 8,
  HS_FLOAT64 = 9,
  HS_BOOL = 10,
  HS_COMPLEX64 = 11,
  HS_COMPLEX128 = 12
} hs_dtype;

/* The encoding of floating-point sums between hosts. Data within a host is not encoded. An encoding
 * does not apply to other element types than those listed for it. With other operators than HS_SUM
 * and HS_AVERAGE, only the first three apply. The others are lossy: the host keeps the residual of
 * each tensor of a named operation and adds it to the next operation with the same name. */
typedef enum hs_encoding {
  HS_ENCODE_NONE = 0,
  HS_ENCODE_FLOAT16 = 1,  /* float32, float64 */
  HS_ENCODE_BFLOAT16 = 2, /* float32, float64 */
  HS_ENCODE_INT8 = 3,     /* this and the following ones: float32, float16, bfloat16 */
  HS_ENCODE_INT4 = 4,
  HS_ENCODE_ONEBIT = 5,
  HS_ENCODE_TOPK = 6, /* plus 256 times the number of elements sent of each 4,096 */
  /* One of the others, which the process set chooses for each operation; plus 256 times the limit
   * of the relative error, in ten-thousandths, 1 to 65,535. */
  HS_ENCODE_ADAPTIVE = 7
} hs_encoding;

typedef enum hs_reduce_op {
  HS_AVERAGE = 0,
  HS_SUM = 1,
  HS_ADASUM = 2,
  HS_MIN = 3,
  HS_MAX = 4,
  HS_PRODUCT = 5,
  HS_BITWISE_AND = 6, /* for integers; for bool, the logical operators */
  HS_BITWISE_OR = 7,
  HS_BITWISE_XOR = 8
} hs_reduce_op;

typedef enum hs_kind {
  HS_ALLREDUCE = 0,
  HS_ALLGATHER = 1,
  HS_BROADCAST = 2,
  HS_ALLTOALL = 3,
  HS_REDUCESCATTER = 4,
  HS_BARRIER = 5,
  HS_JOIN = 6,
  HS_ADD_PROCESS_SET = 7,
  HS_REMOVE_PROCESS_SET = 8,
  HS_REDUCE = 9,
  HS_GATHER = 10,
  HS_SCATTER = 11
} hs_kind;

/* Properties of a process set other than its ranks. */
typedef enum hs_set_flags {
  HS_SET_DISTINCT = 1,   /* create it even if a set of these ranks in this order exists */
  HS_SET_ORDERED = 2,    /* keep the given order of the ranks; otherwise they are sorted */
  HS_SET_BY_MEMBERS = 4, /* its members create it; other ranks do not call */
  HS_SET_ABANDONED =
      8 /* remove a set created by its members: pending operations fail on all of them */
} hs_set_flags;

typedef struct hs_runtime hs_runtime; /* this process's membership in a job */
typedef struct hs_handle hs_handle;   /* one enqueued operation */
typedef struct hs_store_server hs_store_server;
typedef struct hs_store_client hs_store_client;

/* The error of the calling thread's last failed call. */
typedef struct hs_error_info {
  hs_code code;
  const char* message;
  const int32_t* ranks; /* global ranks that caused the error */
  int32_t num_ranks;
  int32_t process_set; /* -1: none */
  const char* tensor;  /* "" : none */
} hs_error_info;

/* The returned pointer is valid until the thread's next call to this library. Local. */
const hs_error_info* hs_error(void);

/* The ABI version of the library; compare it with HS_ABI_VERSION. Local. */
int32_t hs_abi_version(void);

/* The library's version, such as "0.1.0", or "0.1.0.dev0" before it. Local. */
const char* hs_version(void);

/* A JSON object that describes this build and this machine: the fold kernel, and for each backend
 * whether it was found or why not. Local. */
const char* hs_build_info(void);

/* A JSON array with one object per configuration variable: name, type, default, doc. Local. */
const char* hs_config_variables(void);

/* ---------------------------------------------------------------- joining a job */

/* The identity of this process in its job. Fields that are -1 or null are taken from the
 * HOROSCALE_* variables (else HOROVOD_*) or, if an MPI launcher started the process, from MPI. MPI
 * is initialized if necessary, and then finalized when the process exits. Without any of these, the
 * process is rank 0 of 1. */
typedef struct hs_init_options {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  const char* rendezvous; /* host:port of the job's key-value store */
  int32_t
      serve_rendezvous; /* 1: this rank serves it there; 0: it is served elsewhere; -1: variable */
  const char* secret;   /* the job's secret; optional if RENDEZVOUS is on loopback */
  int32_t num_ranks;
  const int32_t* ranks; /* the participating ranks, renumbered in this order; none: all */
  uint64_t mpi_comm;    /* handle of an MPI communicator whose ranks participate; 0: none */
  uint64_t view; /* the number of an elastic job's view, which separates the startups of different
                    views; 0: none */
} hs_init_options;

/* Sets the directory that is searched before the system's for libraries that are opened at run time
 * (MPI), such as the lib folder of a Python environment. Local. */
void hs_set_library_directory(const char* directory);

/* Adds a directory of Python packages that is searched for a wheel's NCCL (nvidia/nccl/lib).
 * Local. */
void hs_add_package_directory(const char* directory);

/* Joins the job: connects to the other ranks and starts the progress thread. Collective over the
 * job; blocks for at most START_TIMEOUT seconds. options may be null. Errors: HS_INVALID_ARGUMENT
 * (a variable does not parse; the message names it), HS_TIMEOUT (the message names the missing
 * ranks), HS_UNAUTHENTICATED, HS_SYSTEM. */
hs_code hs_init(const hs_init_options* options, hs_runtime** out);

/* Leaves the job. Local: does not wait for other ranks. Pending and later operations fail with
 * HS_SHUTDOWN. May be called by any thread and more than once; calls during another call return
 * immediately. */
hs_code hs_shutdown(hs_runtime* runtime);

/* Like hs_shutdown(), but tells the peers that this rank failed, and why, so that their errors name
 * the root cause. For a process that exits because of an error. Local. */
hs_code hs_shutdown_failed(hs_runtime* runtime, const char* reason);

/* Frees a runtime, after shutting it down. No other call on it may be running. Its handles remain
 * valid. */
void hs_runtime_free(hs_runtime* runtime);

typedef struct hs_topology {
  int32_t rank, size;
  int32_t local_rank, local_size; /* among the ranks of this host */
  int32_t cross_rank, cross_size; /* among the ranks with this local rank, one per host */
  int32_t homogeneous;            /* 1: every host has the same number of ranks */
} hs_topology;

/* Returns 1 if the ranks of the job connected over MPI. Local. */
int32_t hs_over_mpi(const hs_runtime* runtime);

/* Makes MPI's own collectives, if they are used, run on a duplicate of this communicator for the
 * process set of these ranks. The communicator must contain exactly these ranks, in any order. All
 * of them call this function before they add the set; the communicator may be freed when it
 * returns. Collective over the communicator; blocks for at most START_TIMEOUT seconds. HS_TIMEOUT,
 * HS_INVALID_ARGUMENT (other ranks, no communicator), HS_SYSTEM (MPI's own errors). */
hs_code hs_use_communicator(hs_runtime* runtime, const int32_t* ranks, int32_t num_ranks,
                            uint64_t mpi_comm);

/* Local. */
hs_code hs_get_topology(hs_runtime* runtime, hs_topology* out);

/* ---------------------------------------------------------------- operations */

typedef struct hs_tensor {
  const void* in; /* contiguous; must remain valid and unchanged until the operation is done */
  void* out;      /* result; may equal `in`; may be null if the library can allocate it (below) */
  int32_t dtype;  /* hs_dtype */
  int32_t num_dims;
  const int64_t* shape; /* shape of the input */
  int64_t out_rows;     /* allgather, alltoall: capacity of `out` in rows, if it is not null */
} hs_tensor;

/* The device of tensors that are not in host memory. A process set uses one device per rank. */
typedef struct hs_device {
  int32_t cuda_device;
  void* stream; /* CUstream or cudaStream_t; null for the legacy default stream. The operation runs
                   after work that is on the stream when it is enqueued, and before work that is
                   added after hs_wait_on_stream(). Must outlive the results. */
} hs_device;

/* Called once when an operation is done, successfully or not, by the thread that drives the engine.
 * It may enqueue further operations and shut down. It must not wait, free the runtime or throw.
 * hs_wait() and hs_poll() may report that the operation is done before the callback has been
 * called. */
typedef void (*hs_callback)(void* user_data, hs_code code);

/* One operation. Fields that each kind reads:
 *   allreduce      tensors (out: same shape), reduce_op, prescale, postscale;
 *                  HS_ADASUM combines each tensor separately, and is for allreduce only
 *   allgather      tensors (out: rows of all members in rank order)
 *   broadcast      tensors (out: same shape; in is read at the root only), root
 *   alltoall       one tensor (out: rows from all members in rank order), splits (rows for each
 *                  member; null: evenly)
 *   reducescatter  tensors (out: own rows), reduce_op, prescale, postscale, splits (rows for each
 *                  member, the same on all of them; null: evenly, remaining rows to lower ranks)
 *   reduce         tensors (out: same shape, written at the root only), as allreduce; root
 *   gather         tensors (out: null; at the root, rows of all members in rank order), root
 *   scatter        one tensor (in is read at the root only; its rows are ignored elsewhere; out:
 *                  null; the own rows), root, splits (read at the root; null: as reducescatter)
 *   barrier, join  nothing
 *   add_process_set, remove_process_set
 *                  ranks, set_flags / target, set_flags; on set 0. With HS_SET_BY_MEMBERS, this
 *                  and the removal of the set are collective over these ranks only; concurrent
 *                  calls for the same ranks are distinguished by their names
 *
 * Several tensors form a group, which is executed all or nothing. The number of rows of the result
 * of an allgather or alltoall is known only when it is done. If `out` is null, the library
 * allocates the result, and hs_output() returns it. Otherwise (host memory only), the result is
 * written there if it has exactly out_rows rows; if not, `out` is unchanged and the operation fails
 * with HS_INVALID_ARGUMENT on this rank only. `out` must not overlap `in`, except that the own rows
 * of an allgather or a reducescatter may be at the same place in both. */
typedef struct hs_request {
  size_t struct_size;
  int32_t kind;     /* hs_kind */
  const char* name; /* null: matched by the order of the unnamed calls on the set */
  int32_t process_set;
  const hs_tensor* tensors;
  int32_t num_tensors;
  int32_t reduce_op;          /* hs_reduce_op */
  double prescale, postscale; /* 1.0 for none */
  int32_t root;               /* global rank */
  const int64_t* splits;
  int32_t num_splits;
  const int32_t* ranks; /* add_process_set: global ranks */
  int32_t num_ranks;
  int32_t target;    /* remove_process_set: the set's id; -1: no set. The same on all ranks */
  int32_t priority;  /* higher is more urgent */
  int32_t will_wait; /* 1: hs_wait() or hs_notify() follows soon, so the engine need not be woken */
  hs_callback callback; /* may be null */
  void* user_data;
  int32_t encoding; /* hs_encoding, for allreduce and reducescatter; for reduce, a 16-bit one */
  const hs_device* device; /* device of all tensors; null: host memory */
  /* 1: the operation's data is authenticated between hosts, so that modified data makes it fail.
   * For data that will be interpreted, such as pickles. The same on all members. The values of
   * other operations are only protected if the job is encrypted. */
  int32_t sealed;
  int32_t set_flags; /* add_process_set, remove_process_set: hs_set_flags, combined with | */
} hs_request;

/* Enqueues an operation and returns immediately. The strings, shapes and lists of the request are
 * copied; the tensors' memory must remain valid until the operation is done. The operation, not the
 * call, is collective over the process set. On failure, *out is null: HS_INVALID_ARGUMENT (bad
 * argument, unknown set, rank not in the set), HS_UNSUPPORTED, HS_DUPLICATE_NAME, HS_RANK_FAILED
 * (the set has lost a member), HS_SHUTDOWN. */
hs_code hs_enqueue(hs_runtime* runtime, const hs_request* request, hs_handle** out);

/* Wakes the engine, if it sleeps, for operations that were enqueued with will_wait. Local, any
 * thread. */
hs_code hs_notify(hs_runtime* runtime);

/* Returns 1 if the operation is done, successfully or not. Local, any thread. */
int32_t hs_poll(const hs_handle* handle);

/* Waits until the operation is done or `seconds` have passed (negative: no limit). Returns HS_OK,
 * HS_TIMEOUT (not done yet), or the operation's own failure:
 *   HS_INVALID_ARGUMENT  the process set exists already (add_process_set) or has been removed
 *                        meanwhile; or the result does not have the number of rows of `out`
 *   HS_JOINED            the operation needs a rank that has called join
 *   HS_UNSUPPORTED       it is not defined for this operator or element type
 *   HS_MISMATCH, HS_DUPLICATE_NAME (a second join), HS_RANK_FAILED, HS_SHUTDOWN
 *   HS_SYSTEM, HS_PROTOCOL (the set is lost on all members)
 * The waiting thread drives the engine itself if possible. Blocks. Any thread. A callback may only
 * wait for operations that are done, such as its own; then the call returns immediately.
 */
hs_code hs_wait(hs_handle* handle, double seconds);

/* For an operation on CUDA tensors: waits at most `seconds` until its work has been submitted to
 * the device, and makes later work on `stream` wait for that work. The host does not wait for it.
 * Returns the same codes as hs_wait(), and HS_OK also while the device is still working; later
 * operations report a failure of that work. Blocks. Any thread. */
hs_code hs_wait_on_stream(hs_handle* handle, void* stream, double seconds);

/* Returns 1 if hs_wait_on_stream() would return immediately: launched, or done. Local, any
 * thread. */
int32_t hs_launched(const hs_handle* handle);

/* hs_enqueue() with will_wait, and hs_wait(), in one call: for operations so small that the
 * overhead of a call matters. Returns the same codes. *out is null unless the operation is not done
 * after `seconds` (HS_TIMEOUT) or has allocated results (HS_OK); then it is the operation's handle.
 * Blocks. */
hs_code hs_run(hs_runtime* runtime, const hs_request* request, double seconds, hs_handle** out);

/* An operation that is described once and run repeatedly with different memory, as in training: for
 * bindings in languages in which filling in a request is slow. It belongs to its runtime and may be
 * used by any number of threads concurrently. After the runtime has been freed, it can only be
 * freed. */
typedef struct hs_template hs_template;

/* Describes an allreduce, broadcast, reducescatter, allgather or alltoall of one tensor in host
 * memory, without a callback. `in`, `out` and `will_wait` of the request are ignored; each run
 * needs an `out`. The checks of hs_enqueue() are made in each run. Local. HS_INVALID_ARGUMENT. */
hs_code hs_prepare(hs_runtime* runtime, const hs_request* request, hs_template** out);

/* hs_enqueue() with memory given as addresses. Returns the handle, or null if hs_enqueue() would
 * fail; hs_error() returns the error. */
hs_handle* hs_enqueue_again(const hs_template* prepared, uintptr_t in, uintptr_t out,
                            int32_t will_wait);

/* hs_run() with memory given as addresses. If the operation is not done after `seconds`
 * (HS_TIMEOUT), hs_take_unfinished() returns its handle. Blocks. */
hs_code hs_run_again(const hs_template* prepared, uintptr_t in, uintptr_t out, double seconds);

/* Returns the handle of this thread's last hs_run_again() that returned HS_TIMEOUT, once; null if
 * there is none. If it is not taken, the thread's next hs_run_again() frees it. Local. */
hs_handle* hs_take_unfinished(void);

void hs_template_free(hs_template* prepared);

/* Result `index` of an operation that allocated its output (allgather, alltoall, gather, scatter).
 * The caller becomes its owner and frees it with hs_free(), or with hs_device_free() if the tensors
 * are on a device. If bytes is 0, *data is null. Only after hs_wait() or hs_wait_on_stream()
 * returned HS_OK, and once per index. */
hs_code hs_output(hs_handle* handle, int32_t index, void** data, size_t* bytes);

/* Stores the number of rows that each member contributed to output `index` in rows[0 … set size).
 * For a gather, only at the root; on other members 0. Only after HS_OK. */
hs_code hs_output_rows(hs_handle* handle, int32_t index, int64_t* rows, int32_t capacity);

/* The number that an operation returns: for join the last rank that joined, for add_process_set the
 * id, for remove_process_set 0, for hs_recv() the sender; -1 for others. Only after hs_wait() or
 * hs_wait_on_stream() returned HS_OK. */
int64_t hs_result(const hs_handle* handle);

/* Frees the handle. An operation that is not done continues, so the tensors' memory must remain
 * valid. */
void hs_handle_free(hs_handle* handle);

/* Frees memory that the library returned. */
void hs_free(void* memory);

/* The same for device memory, after the work that is on the operation's stream at the time of the
 * call. */
void hs_device_free(void* memory);

/* ---------------------------------------------------------------- messages */

/* One message from a rank of a process set to another rank, or to itself. */
typedef struct hs_message {
  size_t struct_size;
  int32_t process_set;
  int32_t peer;    /* global rank: the receiver, or the sender; hs_recv() also -1: any member */
  int64_t tag;     /* 0 or greater; a receive matches messages of its peer, channel and tag */
  int32_t channel; /* 0 to 255: each channel has its own tags */
  int32_t dtype;   /* hs_dtype */
  int64_t count;   /* number of elements; type and count must be equal on both ranks */
  void* memory;    /* contiguous; hs_send() only reads it; must remain valid and unchanged until the
                      operation is done */
  int32_t will_wait;    /* as in hs_request */
  hs_callback callback; /* may be null */
  void* user_data;
  int32_t is_view; /* hs_recv(): if not 0, access the message in place instead of copying it; memory
                      is null */
  const hs_device* device; /* device of the memory; null: host memory. The peer's may differ */
} hs_message;

/* Starts sending or receiving a message and returns immediately. The handle works with hs_wait()
 * and the other functions. Not collective: the peer makes the opposite call. Messages between two
 * ranks with the same channel and tag are received in the order in which they were sent. A small
 * message is sent, and its handle done, whether or not the peer receives it. The handle of a large
 * message, or of one of many unreceived messages, is done when the peer has received it.
 * hs_result() of a receive is the sender. On a device, hs_wait_on_stream() waits for a receive
 * until the message has arrived, and for a send as hs_wait() does. Errors as for hs_enqueue();
 * later HS_MISMATCH on both ranks if type or count differ (only on the receiver if the message was
 * sent already), HS_RANK_FAILED, HS_SHUTDOWN. If a member has left normally, a receive from any
 * rank that finds no message fails with HS_RANK_FAILED once per tag; the next one waits for the
 * remaining members. */
hs_code hs_send(hs_runtime* runtime, const hs_message* message, hs_handle** out);
hs_code hs_recv(hs_runtime* runtime, const hs_message* message, hs_handle** out);

/* Returns 1 while operations of this rank are not done. hs_send() without will_wait may then do
 * part of their work, such as copying part of a large message. Local, any thread. */
int32_t hs_is_busy(const hs_runtime* runtime);

/* The message that hs_recv() with is_view has received. If the sender is on this host and sent it
 * from shared memory, it is the sender's memory, and the send is not done until hs_release();
 * otherwise it is a copy. It must not be written to. Null before HS_OK, and for an empty
 * message. */
const void* hs_view(const hs_handle* handle);

/* Releases such a message to its sender. It may be called before the message has arrived; then no
 * thread may wait for it. Further calls do nothing, nor do calls after the runtime was shut down or
 * the set removed. The runtime must not have been freed. HS_RANK_FAILED: a rank of the set was lost
 * meanwhile; the sender may have continued and modified the message. */
hs_code hs_release(hs_runtime* runtime, hs_handle* handle);

/* Releases the message, if that was not done, and frees the handle. */
void hs_view_free(hs_runtime* runtime, hs_handle* handle);

/* ---------------------------------------------------------------- process sets */

/* Stores the number of registered sets in *count, and as many of their ids as fit in ids. Local. */
hs_code hs_process_sets(hs_runtime* runtime, int32_t* ids, int32_t capacity, int32_t* count);

/* The global ranks of a set, in its order; arguments as for hs_process_sets(). HS_INVALID_ARGUMENT:
 * no such set. Local. */
hs_code hs_process_set_ranks(hs_runtime* runtime, int32_t id, int32_t* ranks, int32_t capacity,
                             int32_t* count);

/* ---------------------------------------------------------------- shared buffers */

/* Allocates memory that the other ranks of the host can access. An in-place allreduce of at least
 * 256 KiB is executed without a copy if its tensors are in such memory on all members. Other
 * collectives read inputs of at least 64 KiB from it without a copy. 64-byte aligned, zeroed.
 * Local. */
hs_code hs_shared_alloc(hs_runtime* runtime, size_t bytes, void** out);

/* Frees shared memory. The runtime may have been shut down, but not freed. Local. */
void hs_shared_free(hs_runtime* runtime, void* memory);

/* Stores the offset at which other ranks of the host find such memory in *offset; -1 if they can't
 * access it. Local. */
hs_code hs_shared_offset(hs_runtime* runtime, const void* memory, size_t bytes, int64_t* offset);

/* Maps shared memory of `count` ranks of this host, `bytes` of each at its offset, as one range of
 * addresses. It may be read and written; unmap it with hs_shared_unjoin(). The owners free their
 * memory after all ranks have called hs_shared_leave(), which replaces the content of the range
 * with private zeros. The range may outlive the runtime, whether it was left or not.
 * HS_INVALID_ARGUMENT: a piece is not accessible, or does not consist of whole pages. HS_SYSTEM:
 * the system refuses. Local. */
hs_code hs_shared_join(hs_runtime* runtime, const int32_t* ranks, const int64_t* offsets,
                       int32_t count, size_t bytes, void** out);
hs_code hs_shared_leave(void* joined, size_t total_bytes);
void hs_shared_unjoin(void* joined, size_t total_bytes);

/* ---------------------------------------------------------------- looking inside */

/* Starts writing the operations of this rank to `path` as Chrome trace JSON. Local. */
hs_code hs_timeline_start(hs_runtime* runtime, const char* path, int32_t mark_cycles);
hs_code hs_timeline_stop(hs_runtime* runtime);

/* Counters and timings as a JSON object; free it with hs_free(). Local. */
hs_code hs_metrics(hs_runtime* runtime, char** json);

/* The residuals of lossy encodings on this rank for the tensors of a process set, which are added
 * to the next operations. Saving returns them as bytes, to be freed with hs_free(). No operation of
 * the set with such an encoding may be pending. Loading fails with HS_MISMATCH if the residuals
 * belong to another member or set, and with HS_INVALID_ARGUMENT if the bytes are not residuals;
 * nothing is changed then. Scaling multiplies them, for gradients whose scale changes; a factor of
 * 0 clears them. Local, any thread. */
hs_code hs_residuals_save(hs_runtime* runtime, int32_t process_set, void** data, size_t* bytes);
hs_code hs_residuals_load(hs_runtime* runtime, int32_t process_set, const void* data, size_t bytes);
hs_code hs_residuals_scale(hs_runtime* runtime, int32_t process_set, double factor);

/* Stores how many seconds this rank's threads have waited for operations since the start, including
 * waits in progress. Time in which several threads wait counts once. Local, any thread. */
hs_code hs_waiting_seconds(hs_runtime* runtime, double* seconds);

/* Whether a reduction (hs_reduce_op) is defined for a type (hs_dtype): HS_OK, or
 * HS_INVALID_ARGUMENT with the reason (Average of bool, Min of complex numbers). Local, needs no
 * runtime. */
hs_code hs_check_reduction(int32_t dtype, int32_t op);

/* ---------------------------------------------------------------- the key-value store */

/* The secret from the variables SECRET or SECRET_FILE; null if neither is set. Free it with
 * hs_free(). HS_INVALID_ARGUMENT if it is too weak, or if others can read the file. */
hs_code hs_job_secret(char** secret);

/* Serves a job's key-value store on host:port (port 0: any) in its own thread, to clients that
 * prove that they know the secret. `host` may be several addresses of this machine, separated by
 * commas; addresses that are currently unavailable are skipped. Without a secret (null), which is
 * possible on loopback only, the server generates one, which processes of the same user on this
 * host find automatically. *bound_port is the port in use. After the handshake, traffic is
 * authenticated, and encrypted if `encrypt` is 1, which clients must set too. HS_INVALID_ARGUMENT
 * if the secret is too weak, for server and client, unless `host` is on loopback. */
hs_code hs_store_serve(const char* host, int32_t port, const char* secret, int32_t encrypt,
                       hs_store_server** out, int32_t* bound_port);
void hs_store_server_free(hs_store_server* server);

/* Connects to a store; without a secret (null), to one that is served without one. Blocks for at
 * most `seconds`. HS_UNAUTHENTICATED, HS_TIMEOUT, HS_SYSTEM, HS_INVALID_ARGUMENT (the server's
 * `encrypt` differs), HS_UNIMPLEMENTED (no OpenSSL). */
hs_code hs_store_connect(const char* host, int32_t port, const char* secret, int32_t encrypt,
                         double seconds, hs_store_client** out);

/* Sets a key, once. HS_INVALID_ARGUMENT if it is already set to another value. Blocks. */
hs_code hs_store_set(hs_store_client* client, const char* key, const void* value, size_t bytes);

/* Waits for a key for at most `seconds`. The caller frees the value with hs_free(). Blocks. */
hs_code hs_store_get(hs_store_client* client, const char* key, double seconds, void** value,
                     size_t* bytes);
void hs_store_client_free(hs_store_client* client);

/* … and this one. */
/* [end of declarations] */
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif /* HOROSCALE_HOROSCALE_H_ */
