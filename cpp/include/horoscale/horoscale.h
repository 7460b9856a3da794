/* horoscale's C ABI: the one door between a framework binding and the runtime.
 *
 * Conventions
 *   1. Every function that can fail returns an hs_code. After a failure hs_error() describes it, in
 *      the thread that made the call and until its next call. Null for an argument that is not said
 *      to be optional, and a number that no enumeration has, are HS_INVALID_ARGUMENT.
 *   2. Handles are opaque. What a function makes, the function named with it frees; freeing null is
 *      allowed. A handle may be used by one thread at a time, a runtime by any number of threads.
 *   3. Structures that the caller fills begin with their own size (sizeof). Zero the rest before
 *      filling it in: where they grow, a library goes on to accept the sizes of earlier headers of
 *      its ABI version, and takes what these lack as zero. A size that it doesn't know is refused.
 *   4. "Collective" means that every member of the process set has to make the same call; "local"
 *      means that no other rank is involved. Only the functions marked "blocks" wait for anything.
 *   5. Strings are UTF-8 and end with NUL. A string that is returned is owned by the library unless
 *      the function says otherwise.
 *   6. After fork() the child's copy of a runtime is inert: every call returns HS_NOT_INITIALIZED.
 */
#ifndef HOROSCALE_HOROSCALE_H_
#define HOROSCALE_HOROSCALE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Compared with hs_abi_version() at run time by every binding. Grows with each incompatible change.
 */
#define HS_ABI_VERSION 4

/* Everything else in the library is hidden. */
#pragma GCC visibility push(default)

/* cffi reads the declarations from here … */
/* [declarations] */

typedef enum hs_code {
  HS_OK = 0,
  HS_INVALID_ARGUMENT = 1, /* wrong in a way that this rank can see by itself */
  HS_NOT_INITIALIZED = 2,  /* in a forked child */
  HS_MISMATCH = 3,         /* the members contradict each other; the runtime goes on */
  HS_DUPLICATE_NAME = 4,   /* an operation of that name is pending on that set */
  HS_RANK_FAILED = 5,      /* a rank died or left; its sets are unusable */
  HS_SHUTDOWN = 6,         /* hs_shutdown() was called here */
  HS_TIMEOUT = 7,
  HS_UNAUTHENTICATED = 8, /* wrong or missing secret */
  HS_SYSTEM = 9,          /* the operating system refused */
  HS_PROTOCOL = 10,       /* a peer sent what can't be */
  HS_UNIMPLEMENTED = 11,  /* not in this build */
  HS_INTERNAL = 12,       /* a defect of ours */
  HS_UNSUPPORTED = 13,    /* the operation is not defined for this operator or element type */
  HS_JOINED = 14          /* the operation needs a rank that has joined */
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

/* How sums of floating-point numbers travel between hosts. Within a host nothing is encoded. What
 * isn't of a type that an encoding is for travels as it is, and so does the result of another
 * operator than HS_SUM and HS_AVERAGE with all but the first three. These lose much: what they lose
 * of a tensor of an operation with a name is kept by the host, and sent with the next one of that
 * name. */
typedef enum hs_encoding {
  HS_ENCODE_NONE = 0,
  HS_ENCODE_FLOAT16 = 1,  /* float32, float64 */
  HS_ENCODE_BFLOAT16 = 2, /* float32, float64 */
  HS_ENCODE_INT8 = 3,     /* this and the following: float32, float16, bfloat16 */
  HS_ENCODE_INT4 = 4,
  HS_ENCODE_ONEBIT = 5,
  HS_ENCODE_TOPK = 6, /* plus 256 times how many of 4,096 elements are sent */
  /* One of the others, which the set chooses for each operation: plus 256 times the most that the
   * relative error may be, in ten-thousandths, 1 to 65,535. */
  HS_ENCODE_ADAPTIVE = 7
} hs_encoding;

typedef enum hs_reduce_op {
  HS_AVERAGE = 0,
  HS_SUM = 1,
  HS_ADASUM = 2,
  HS_MIN = 3,
  HS_MAX = 4,
  HS_PRODUCT = 5,
  HS_BITWISE_AND = 6, /* of integers; of bool as the logical operators */
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

/* What a process set is to be, besides the set of its ranks. */
typedef enum hs_set_flags {
  HS_SET_DISTINCT = 1,   /* also if there is one of these ranks in this order */
  HS_SET_ORDERED = 2,    /* its ranks are in the order given; else they are sorted */
  HS_SET_BY_MEMBERS = 4, /* its members make it, and no other rank calls */
  HS_SET_ABANDONED = 8   /* removing one of its members': what is pending fails, on all of them */
} hs_set_flags;

typedef struct hs_runtime hs_runtime; /* this process' part of a job */
typedef struct hs_handle hs_handle;   /* one enqueued operation */
typedef struct hs_store_server hs_store_server;
typedef struct hs_store_client hs_store_client;

/* What went wrong in the calling thread's last failed call. */
typedef struct hs_error_info {
  hs_code code;
  const char* message;
  const int32_t* ranks; /* global ranks that caused it */
  int32_t num_ranks;
  int32_t process_set; /* -1: none */
  const char* tensor;  /* "" : none */
} hs_error_info;

/* Valid until the thread's next call of this library. Local. */
const hs_error_info* hs_error(void);

/* The ABI version of the library, to be compared with HS_ABI_VERSION. Local. */
int32_t hs_abi_version(void);

/* The library's version, such as "0.1.0". Local. */
const char* hs_version(void);

/* A JSON object that tells what this build and this machine offer: fold kernel, backends with found
 * or the reason why not. Local. */
const char* hs_build_info(void);

/* A JSON array, one object per configuration variable: name, type, default, doc. Local. */
const char* hs_config_variables(void);

/* ---------------------------------------------------------------- joining a job */

/* Who this process is in its job. Fields left at -1 or null are taken from the HOROSCALE_*
 * variables (else HOROVOD_*) or, where an MPI launcher started the process, from MPI, which is
 * initialized if it isn't yet and finalized when the process exits. Otherwise it is rank 0 of 1. */
typedef struct hs_init_options {
  size_t struct_size;
  int32_t rank;
  int32_t size;
  const char* rendezvous; /* host:port of the job's key-value store */
  int32_t
      serve_rendezvous; /* 1: this rank serves it there; 0: it is served elsewhere; -1: variable */
  const char* secret;   /* the job's secret; none is needed where RENDEZVOUS is on loopback */
  int32_t num_ranks;
  const int32_t* ranks; /* who takes part, numbered anew in this order; none: all */
  uint64_t mpi_comm;    /* an MPI communicator whose ranks take part, as its handle; 0: none */
  uint64_t view; /* of an elastic job: its number, which keeps the starts of its views apart; 0:
                    none */
} hs_init_options;

/* Where libraries that are opened at run time (MPI) are looked for before the system's places: the
 * lib folder of a Python environment. Local. */
void hs_set_library_directory(const char* directory);

/* A folder of Python packages, in which a wheel's NCCL is looked for (nvidia/nccl/lib). Local. */
void hs_add_package_directory(const char* directory);

/* Joins the job: meets the other ranks and starts the progress thread. Collective over the job;
 * blocks for at most START_TIMEOUT seconds. options may be null. HS_INVALID_ARGUMENT (a variable
 * does not parse: the message names it), HS_TIMEOUT (the message names the ranks that did not
 * come), HS_UNAUTHENTICATED, HS_SYSTEM. */
hs_code hs_init(const hs_init_options* options, hs_runtime** out);

/* Leaves the job. Local: does not wait for other ranks. Pending operations fail with HS_SHUTDOWN,
 * later ones too. May be called by any thread and more than once; while one call is at it, others
 * return at once. */
hs_code hs_shutdown(hs_runtime* runtime);

/* Like hs_shutdown(), but peers are told that this rank failed, and why, so that they name the
 * first cause. For a process that ends because of an error. Local. */
hs_code hs_shutdown_failed(hs_runtime* runtime, const char* reason);

/* Frees a runtime, after shutting it down. No other call on it may be running. Handles stay valid.
 */
void hs_runtime_free(hs_runtime* runtime);

typedef struct hs_topology {
  int32_t rank, size;
  int32_t local_rank, local_size; /* among the ranks of this host */
  int32_t cross_rank, cross_size; /* among the ranks with this local rank, one per host */
  int32_t homogeneous;            /* 1: every host has the same number of ranks */
} hs_topology;

/* 1 if the ranks of the job met over MPI. Local. */
int32_t hs_over_mpi(const hs_runtime* runtime);

/* Has MPI's own collectives, where they are used, run on a duplicate of this communicator for the
 * process set of these ranks, which are exactly its own, in any order. All of them call it before
 * they add the set; the communicator is not needed any more when it returns. Collective over the
 * communicator; blocks for at most START_TIMEOUT seconds. HS_TIMEOUT, HS_INVALID_ARGUMENT (other
 * ranks, no communicator), HS_SYSTEM (MPI's own errors). */
hs_code hs_use_communicator(hs_runtime* runtime, const int32_t* ranks, int32_t num_ranks,
                            uint64_t mpi_comm);

/* Local. */
hs_code hs_get_topology(hs_runtime* runtime, hs_topology* out);

/* ---------------------------------------------------------------- operations */

typedef struct hs_tensor {
  const void* in; /* contiguous; must stay valid and unchanged until the operation is done */
  void* out;      /* result; may equal in; may be null where the library can allocate it (below) */
  int32_t dtype;  /* hs_dtype */
  int32_t num_dims;
  const int64_t* shape; /* of the input */
  int64_t out_rows; /* allgather, alltoall: the rows for which `out` has room, if it isn't null */
} hs_tensor;

/* Where tensors are that are not in the host's memory. A process set uses one device of each rank.
 */
typedef struct hs_device {
  int32_t cuda_device;
  void* stream; /* CUstream or cudaStream_t, null for the legacy default stream: what it holds when
                   the operation is enqueued comes before the operation, which comes before what it
                   is given after hs_wait_on_stream(). Must live as long as the results do. */
} hs_device;

/* Called once when an operation is done, well or not, by whichever thread drives the engine. It may
 * enqueue further operations and shut down; it must not wait, free the runtime, or throw. hs_wait()
 * and hs_poll() may tell that the operation is done before the callback has been called. */
typedef void (*hs_callback)(void* user_data, hs_code code);

/* One operation. What each kind reads:
 *   allreduce      tensors (out: same shape), reduce_op, prescale, postscale
 *   allgather      tensors (out: rows of all members in order of rank)
 *   broadcast      tensors (out: same shape; in is read at the root only), root
 *   alltoall       one tensor (out: rows from all members in order of rank), splits (rows for each
 *                  member; null: evenly)
 *   reducescatter  tensors (out: own rows), reduce_op, prescale, postscale, splits (rows for each
 *                  member, the same on all of them; null: evenly, the lower ones one more)
 *   reduce         tensors (out: same shape, written at the root only), as allreduce; root
 *   gather         tensors (out null: at the root rows of all members in order of rank), root
 *   scatter        one tensor (in is read at the root only; elsewhere its rows don't count; out
 *                  null: the own rows), root, splits (read at the root; null: as reducescatter)
 *   barrier, join  nothing
 *   add_process_set, remove_process_set
 *                  ranks, set_flags / target, set_flags; on set 0. HS_SET_BY_MEMBERS: collective
 *                  over these ranks alone, as is removing the set then; calls of the same ranks
 *                  that are pending at once are told apart by their names
 *
 * Several tensors make a group, which is executed all or nothing. How many rows come of an
 * allgather or alltoall is known only when it is done. Where `out` is null the library allocates
 * the result, which is fetched with hs_output(). Otherwise (host memory only) the result is written
 * there if it has exactly out_rows rows; if not, `out` is left alone and the operation fails here
 * with HS_INVALID_ARGUMENT, and on no other rank. `out` may share no memory with `in`, but that the
 * own rows of an allgather or a reducescatter may lie in both at the same place. */
typedef struct hs_request {
  size_t struct_size;
  int32_t kind;     /* hs_kind */
  const char* name; /* null: matched by the order of unnamed calls on the set */
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
  int32_t target;       /* remove_process_set: the set's id; -1: no set, as all ranks have to say */
  int32_t priority;     /* higher is more urgent */
  int32_t will_wait;    /* 1: hs_wait() or hs_notify() follows soon: spares waking the engine */
  hs_callback callback; /* may be null */
  void* user_data;
  int32_t encoding;        /* hs_encoding, of allreduce; reduce, reducescatter: a 16-bit one */
  const hs_device* device; /* of all tensors; null: host memory */
  /* 1: between hosts nobody can change what the operation moves without making it fail: for what
   * will be interpreted, such as pickles. All members say the same. The values of other operations
   * are as safe as the network, unless the job is encrypted. */
  int32_t sealed;
  int32_t set_flags; /* add_process_set, remove_process_set: hs_set_flags, or-ed */
} hs_request;

/* Enqueues an operation and returns at once. The strings, shapes and lists of the request are
 * copied; the tensors' memory must live until the operation is done. Collective over the process
 * set (not the call: the operation). A failure leaves *out null: HS_INVALID_ARGUMENT (bad argument,
 * unknown set, rank not in the set), HS_UNSUPPORTED, HS_DUPLICATE_NAME, HS_RANK_FAILED (the set has
 * lost a member), HS_SHUTDOWN. */
hs_code hs_enqueue(hs_runtime* runtime, const hs_request* request, hs_handle** out);

/* Wakes the engine, if it sleeps, for what was enqueued with will_wait. Local, any thread. */
hs_code hs_notify(hs_runtime* runtime);

/* 1 when the operation is done, well or not. Local, any thread. */
int32_t hs_poll(const hs_handle* handle);

/* Waits until the operation is done or `seconds` are over (negative: no limit) and returns how it
 * went: HS_OK, HS_TIMEOUT (not done yet), or the operation's own failure:
 *   HS_INVALID_ARGUMENT  the set can't take it: exists already (a process set), or has been removed
 *                        meanwhile; or the result has other rows than `out` has room for
 *   HS_JOINED            it needs a rank that has joined
 *   HS_UNSUPPORTED       it is not defined for this operator or element type
 *   HS_MISMATCH, HS_DUPLICATE_NAME (a second join), HS_RANK_FAILED, HS_SHUTDOWN
 *   HS_SYSTEM, HS_PROTOCOL (the set is lost on all members)
 * The waiting thread drives the engine itself where it can. Blocks. Any thread; a callback only for
 * operations that are done, its own for one, where it returns at once.
 */
hs_code hs_wait(hs_handle* handle, double seconds);

/* For an operation on CUDA tensors: waits until the device has been given its work, at most so
 * long, and makes what is enqueued on `stream` from now on wait for that work. The host does not.
 * Returns what hs_wait() would, HS_OK also while the device is still at work: a failure of that
 * work is told by later operations. Blocks. Any thread. */
hs_code hs_wait_on_stream(hs_handle* handle, void* stream, double seconds);

/* 1 when hs_wait_on_stream() would return at once: launched, or done. Local, any thread. */
int32_t hs_launched(const hs_handle* handle);

/* hs_enqueue(), with will_wait, and hs_wait() in one call, and returns what these would: for
 * operations so small that each call counts. *out is null unless the operation goes on after
 * `seconds` (HS_TIMEOUT) or has allocated results (HS_OK): then it is its handle. Blocks. */
hs_code hs_run(hs_runtime* runtime, const hs_request* request, double seconds, hs_handle** out);

/* An operation that is described once and run again with other memory, as training does: for
 * bindings whose language takes long to fill in a request. It belongs to its runtime, and may be
 * used by any number of threads at once, until that is freed; afterwards it can only be freed. */
typedef struct hs_template hs_template;

/* Describes an allreduce, broadcast, reducescatter, allgather or alltoall of one tensor in host
 * memory, without a callback; `in`, `out` and `will_wait` of the request are not read, and an `out`
 * is needed each time. What is said of a request with hs_enqueue() is found out each time that it
 * is run. Local. HS_INVALID_ARGUMENT. */
hs_code hs_prepare(hs_runtime* runtime, const hs_request* request, hs_template** out);

/* hs_enqueue() with memory whose addresses are given as numbers. Returns the handle, or null where
 * hs_enqueue() would fail: hs_error() says why. */
hs_handle* hs_enqueue_again(const hs_template* prepared, uintptr_t in, uintptr_t out,
                            int32_t will_wait);

/* hs_run() with memory whose addresses are given as numbers. Where the operation goes on after
 * `seconds` (HS_TIMEOUT), hs_take_unfinished() gives its handle. Blocks. */
hs_code hs_run_again(const hs_template* prepared, uintptr_t in, uintptr_t out, double seconds);

/* What this thread's last hs_run_again() that returned HS_TIMEOUT has left, once; null: nothing. It
 * is freed by the thread's next call of this kind unless it was taken. Local. */
hs_handle* hs_take_unfinished(void);

void hs_template_free(hs_template* prepared);

/* Result `index` of an operation that allocated its output (allgather, alltoall, gather, scatter):
 * the caller becomes its owner and frees it with hs_free(), or hs_device_free() where the tensors
 * are on a device. bytes may be 0, *data is null then. Only after hs_wait() or hs_wait_on_stream()
 * gave HS_OK, once for each index. */
hs_code hs_output(hs_handle* handle, int32_t index, void** data, size_t* bytes);

/* Rows that each member contributed to output `index`, into rows[0 … set size); of a gather at the
 * root only, elsewhere 0. Only after HS_OK. */
hs_code hs_output_rows(hs_handle* handle, int32_t index, int64_t* rows, int32_t capacity);

/* The number that an operation returns: join the last rank to join, add_process_set the id,
 * remove_process_set 0, hs_recv() the sender; -1 for others. Only after HS_OK of hs_wait() or
 * hs_wait_on_stream(). */
int64_t hs_result(const hs_handle* handle);

/* Frees the handle. The operation goes on if it is not done: the tensors' memory must still live.
 */
void hs_handle_free(hs_handle* handle);

/* Frees memory that the library handed over. */
void hs_free(void* memory);

/* The same for memory of a device, after what the stream of the operation holds by then. */
void hs_device_free(void* memory);

/* ---------------------------------------------------------------- messages */

/* One message from a rank of a process set to another one, or to itself. */
typedef struct hs_message {
  size_t struct_size;
  int32_t process_set;
  int32_t peer;    /* global rank: the receiver, or the sender; hs_recv() also -1: any member */
  int64_t tag;     /* from 0: a receive takes messages of its peer, channel and tag */
  int32_t channel; /* 0 to 255: a space of tags of its own */
  int32_t dtype;   /* hs_dtype */
  int64_t count;   /* elements; type and count have to be equal on both ranks */
  void* memory; /* contiguous; hs_send() only reads it; must live until the operation is done, and
                   stay unchanged */
  int32_t will_wait;    /* as in hs_request */
  hs_callback callback; /* may be null */
  void* user_data;
  int32_t is_view; /* hs_recv(): not 0: see the message instead of copying it; memory is null */
  const hs_device* device; /* where the memory is; null: the host. The peer's may be elsewhere */
} hs_message;

/* Starts sending a message, or receiving one, and returns at once; the handle works with hs_wait()
 * and the others. Not collective: the peer makes the other call. Messages between two ranks with
 * the same channel and tag are received in the order in which they were sent. A small message is
 * sent, and its handle done, whether or not the peer receives it; the handle of a larger one, or of
 * one of many that were not received, is done when it is. hs_result() of a receive is the sender.
 * On a device hs_wait_on_stream() waits for a receive until the message has come, and for a send as
 * hs_wait() does.
 * Failures as of hs_enqueue(); later HS_MISMATCH on the two ranks, where type or count differ (of a
 * message that was sent already: on the receiver alone), HS_RANK_FAILED, HS_SHUTDOWN. Where a
 * member has left in good order a receive of any that finds no message is HS_RANK_FAILED once for
 * each tag: the next one waits for the members that are left. */
hs_code hs_send(hs_runtime* runtime, const hs_message* message, hs_handle** out);
hs_code hs_recv(hs_runtime* runtime, const hs_message* message, hs_handle** out);

/* 1 while operations of this rank are not done: hs_send() without will_wait may do some of their
 * work then, such as copying a part of a large message. Local, any thread. */
int32_t hs_is_busy(const hs_runtime* runtime);

/* The message that hs_recv() with is_view has received: in the sender's shared memory, if it was
 * sent from there on this host, whose send is not done until hs_release(); else a copy. Nobody may
 * write there. Null before HS_OK, and for no elements. */
const void* hs_view(const hs_handle* handle);

/* Gives such a message back to its sender; also before it has come, which nobody waits for then.
 * Later calls do nothing, nor does one after the runtime was shut down, or the set removed; the
 * runtime may not have been freed. HS_RANK_FAILED: a rank of the set was lost meanwhile; the sender
 * may have gone on, and changed what was seen. */
hs_code hs_release(hs_runtime* runtime, hs_handle* handle);

/* Gives it back if that was not done, and frees the handle. */
void hs_view_free(hs_runtime* runtime, hs_handle* handle);

/* ---------------------------------------------------------------- process sets */

/* Number of registered sets in *count, and as many of their ids as fit in ids. Local. */
hs_code hs_process_sets(hs_runtime* runtime, int32_t* ids, int32_t capacity, int32_t* count);

/* The global ranks of a set, in its order, as hs_process_sets(). HS_INVALID_ARGUMENT: no such set.
 * Local.
 */
hs_code hs_process_set_ranks(hs_runtime* runtime, int32_t id, int32_t* ranks, int32_t capacity,
                             int32_t* count);

/* ---------------------------------------------------------------- shared buffers */

/* Memory that the other ranks of the host can reach: an allreduce in place of at least 256 KiB
 * whose tensors live in it on all members is executed without a copy, and other collectives read
 * inputs of at least 64 KiB there. 64-byte aligned, zeroed. Local. */
hs_code hs_shared_alloc(hs_runtime* runtime, size_t bytes, void** out);

/* Gives it back. The runtime may be shut down already, but not freed. Local. */
void hs_shared_free(hs_runtime* runtime, void* memory);

/* Where other ranks of the host find such memory, in *offset; -1 if no other rank can. Local. */
hs_code hs_shared_offset(hs_runtime* runtime, const void* memory, size_t bytes, int64_t* offset);

/* Shared memory of `count` ranks of this host, `bytes` of each at its offset, as one range of
 * addresses, to be freed with hs_shared_unjoin(). It may be read and written. Its owners free it
 * when all have called hs_shared_leave(), after which the range holds zeros of its own; a range
 * that was left or not may outlive the runtime. HS_INVALID_ARGUMENT: a piece can't be reached, or
 * does not consist of whole pages; HS_SYSTEM: the system refuses. Local. */
hs_code hs_shared_join(hs_runtime* runtime, const int32_t* ranks, const int64_t* offsets,
                       int32_t count, size_t bytes, void** out);
hs_code hs_shared_leave(void* joined, size_t total_bytes);
void hs_shared_unjoin(void* joined, size_t total_bytes);

/* ---------------------------------------------------------------- looking inside */

/* Writes the following operations of this rank to `path` as Chrome trace JSON. Local. */
hs_code hs_timeline_start(hs_runtime* runtime, const char* path, int32_t mark_cycles);
hs_code hs_timeline_stop(hs_runtime* runtime);

/* Counters and timings as a JSON object, to be freed with hs_free(). Local. */
hs_code hs_metrics(hs_runtime* runtime, char** json);

/* What lossy encodings have lost of the tensors of a process set on this rank, and will send with
 * the next ones: as bytes, to be freed with hs_free(), and back. No operation of the set may be
 * pending that has such an encoding. Loading: HS_MISMATCH where they are those of another member or
 * another set, HS_INVALID_ARGUMENT where they are none; then nothing has changed. Scaling: as where
 * gradients have another scale from now on; by 0: forgets them. Local, any thread. */
hs_code hs_residuals_save(hs_runtime* runtime, int32_t process_set, void** data, size_t* bytes);
hs_code hs_residuals_load(hs_runtime* runtime, int32_t process_set, const void* data, size_t bytes);
hs_code hs_residuals_scale(hs_runtime* runtime, int32_t process_set, double factor);

/* For how many seconds this rank's threads have waited for operations since the start, the wait
 * that is under way included; threads that wait at the same time count once. Local, any thread. */
hs_code hs_waiting_seconds(hs_runtime* runtime, double* seconds);

/* Whether a reduction (hs_reduce_op) is defined for a type (hs_dtype): HS_OK, or
 * HS_INVALID_ARGUMENT with the reason (Average of bool, Min of complex numbers). Local, needs no
 * runtime. */
hs_code hs_check_reduction(int32_t dtype, int32_t op);

/* ---------------------------------------------------------------- the key-value store */

/* The secret that the variables SECRET or SECRET_FILE give the ranks of a job, to be freed with
 * hs_free(); null if they give none. HS_INVALID_ARGUMENT if it is too easy to guess, or if others
 * can read the file. */
hs_code hs_job_secret(char** secret);

/* Serves a job's key-value store on host:port (port 0: any) in a thread of its own, to clients that
 * prove that they know the secret. `host` may be several addresses of this machine, separated by
 * commas; those that can't be had now are left out. Without a secret (null), on loopback only, it
 * makes one, which processes of the same user on this host find by themselves. *port is the port in
 * use. What is said afterwards is authenticated, and encrypted if `encrypt` is 1, as clients have
 * to say too. HS_INVALID_ARGUMENT for a secret that is too easy to guess, on either side, unless
 * `host` is on loopback. */
hs_code hs_store_serve(const char* host, int32_t port, const char* secret, int32_t encrypt,
                       hs_store_server** out, int32_t* bound_port);
void hs_store_server_free(hs_store_server* server);

/* Connects to a store; without a secret (null) to one that was served without. Blocks for at most
 * `seconds`. HS_UNAUTHENTICATED, HS_TIMEOUT, HS_SYSTEM, HS_INVALID_ARGUMENT (the server's `encrypt`
 * is another one), HS_UNIMPLEMENTED (no OpenSSL). */
hs_code hs_store_connect(const char* host, int32_t port, const char* secret, int32_t encrypt,
                         double seconds, hs_store_client** out);

/* Sets a key, once: HS_INVALID_ARGUMENT if it is set to another value already. Blocks. */
hs_code hs_store_set(hs_store_client* client, const char* key, const void* value, size_t bytes);

/* Waits for a key for at most `seconds`. The value is the caller's: hs_free(). Blocks. */
hs_code hs_store_get(hs_store_client* client, const char* key, double seconds, void** value,
                     size_t* bytes);
void hs_store_client_free(hs_store_client* client);

/* … to here. */
/* [end of declarations] */
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif /* HOROSCALE_HOROSCALE_H_ */
