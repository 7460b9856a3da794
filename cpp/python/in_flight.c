/* The module horoscale._core._in_flight: operations as Python objects with low overhead.
 *
 * A training step starts and waits for hundreds of operations. With classes written in Python, each
 * would take longer than a small operation. Starting an operation can't be interrupted before its
 * memory is kept alive, because Python checks for Ctrl-C only between its own instructions.
 *
 * Uses the limited API, so that one build supports all versions of Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <horoscale/horoscale.h>
#include <time.h>

/* Python runs signal handlers (Ctrl-C) only when the library has returned. */
static const double kWaitSliceSeconds = 0.2;

/* Older operations are checked after this many new ones, so that dropped ones do not accumulate. */
enum { kLookAtEvery = 8 };

static PyTypeObject* handle_base;
static PyTypeObject* in_flight_type;

typedef struct InFlight InFlight;

/* An enqueued operation. */
typedef struct Handle {
  PyObject_HEAD hs_handle* pointer;
  PyObject* keep_alive; /* the owners of its memory, until it is done */
  InFlight* registry;   /* keeps the runtime from being freed, as long as that is needed */
  struct Handle* older; /* those in flight, in a ring with the registry's `ring` */
  struct Handle* newer;
  int is_view;
} Handle;

/* The operations of a runtime that may not be done: keeps their memory alive if the user drops the
 * handle. Operations without waiters are removed when later ones are started and they are done. */
struct InFlight {
  PyObject_HEAD PyObject* owner; /* of the runtime */
  hs_runtime* runtime;
  PyTypeObject* handles; /* their class */
  Handle ring;           /* not an object: newer is the oldest of all, older the newest */
  Py_ssize_t count;
};

/* An operation that is started repeatedly. */
typedef struct {
  PyObject_HEAD hs_template* pointer;
  InFlight* registry;
} Template;

/* ---------------------------------------------------------------- helpers */

/* Raises the exception for a failed call of this thread; see horoscale._core.errors. */
static PyObject* Raise(hs_code code) {
  PyObject* errors = PyImport_ImportModule("horoscale._core.errors");
  if (errors == NULL) return NULL;
  PyObject* error = PyObject_CallMethod(errors, "last_error", "i", (int)code);
  Py_DECREF(errors);
  if (error == NULL) return NULL;
  PyErr_SetObject((PyObject*)Py_TYPE(error), error);
  Py_DECREF(error);
  return NULL;
}

static int CheckCount(const char* function, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
  if (given >= least && given <= most) return 1;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments, not %zd", function, least, most,
               given);
  return 0;
}

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void Free(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

/* ---------------------------------------------------------------- operations in flight */

static void Link(InFlight* registry, Handle* handle) {
  Handle* ring = &registry->ring;
  handle->newer = ring;
  handle->older = ring->older;
  ring->older->newer = handle;
  ring->older = handle;
}

static void Unlink(Handle* handle) {
  handle->older->newer = handle->newer;
  handle->newer->older = handle->older;
  handle->older = handle->newer = NULL;
}

/* Releases the resources of an operation that is done. The caller must hold a reference, because
 * destructors may call anything. */
static void LetGo(Handle* handle) {
  if (handle->newer == NULL) return;
  InFlight* registry = handle->registry;
  Unlink(handle);
  --registry->count;
  PyObject* keep_alive = handle->keep_alive;
  handle->keep_alive = NULL;
  if (!handle->is_view) handle->registry = NULL; /* a view is released to the runtime */
  Py_XDECREF(keep_alive);
  if (!handle->is_view) Py_DECREF(registry);
  Py_DECREF(handle); /* the ring's reference */
}

/* Removes the oldest operation if it is done; otherwise makes it the newest. */
static int ReapOldest(InFlight* registry) {
  Handle* oldest = registry->ring.newer;
  if (oldest == &registry->ring) return 0;
  if (!hs_poll(oldest->pointer)) {
    Unlink(oldest);
    Link(registry, oldest);
    return 0;
  }
  Py_INCREF(oldest);
  LetGo(oldest);
  Py_DECREF(oldest);
  return 1;
}

/* Removes some of the oldest operations that are done. */
static void Look(InFlight* registry) {
  int undone = 0;
  for (int i = 0; i < 2 * kLookAtEvery && undone < 2; ++i) undone += !ReapOldest(registry);
}

/* Returns a handle that is not in flight yet. */
static Handle* NewHandle(InFlight* registry) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(registry->handles, Py_tp_alloc);
  return (Handle*)allocate(registry->handles, 0); /* zeroed */
}

/* Takes the library's handle, and keeps its memory alive from now on. */
static PyObject* Begin(InFlight* registry, Handle* handle, PyObject* keep_alive) {
  Py_INCREF(registry);
  handle->registry = registry;
  Py_INCREF(keep_alive);
  handle->keep_alive = keep_alive;
  Py_INCREF(handle);
  Link(registry, handle);
  if (++registry->count % kLookAtEvery == 0) Look(registry);
  return (PyObject*)handle;
}

/* ---------------------------------------------------------------- Handle */

typedef hs_code (*WaitFunction)(hs_handle* handle, void* argument, double seconds);

static hs_code WaitDone(hs_handle* handle, void* argument, double seconds) {
  (void)argument;
  return hs_wait(handle, seconds);
}

/* Waits until `timeout` seconds (null or None: no limit) after `began`, in slices between which it
 * checks for Ctrl-C. Returns 0 with an exception set if the operation is not done. */
static int Wait(Handle* self, WaitFunction wait, void* argument, PyObject* timeout, double began,
                hs_code* code) {
  double deadline = 0;
  const int has_deadline = timeout != NULL && timeout != Py_None;
  if (has_deadline) {
    const double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) return 0;
    deadline = began + seconds;
  }
  /* Another thread may shut down the runtime meanwhile and drop all other references to it. */
  InFlight* registry = self->registry;
  Py_XINCREF(registry);
  int is_known = 0;
  for (;;) {
    double slice = kWaitSliceSeconds;
    if (has_deadline) {
      const double left = deadline - Now();
      slice = left < 0 ? 0 : left < slice ? left : slice;
    }
    Py_BEGIN_ALLOW_THREADS;
    *code = wait(self->pointer, argument, slice);
    Py_END_ALLOW_THREADS;
    is_known = *code != HS_TIMEOUT;
    if (is_known || PyErr_CheckSignals() != 0) break;
    if (has_deadline && Now() >= deadline) {
      PyErr_Format(PyExc_TimeoutError, "the operation is not done after %S s", timeout);
      break;
    }
  }
  Py_XDECREF(registry);
  return is_known;
}

static PyObject* WaitAndLetGo(Handle* self, PyObject* timeout, double began) {
  hs_code code = HS_OK;
  if (hs_poll(self->pointer)) {
    code = hs_wait(self->pointer, 0);
  } else if (!Wait(self, WaitDone, NULL, timeout, began, &code)) {
    return NULL;
  }
  /* Create the exception first, because releasing memory may call the library again. */
  if (code != HS_OK) Raise(code);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  LetGo(self);
  PyErr_Restore(type, value, trace);
  if (code != HS_OK) return NULL;
  Py_RETURN_NONE;
}

static PyObject* HandleWait(Handle* self, PyObject* const* args, Py_ssize_t count) {
  if (!CheckCount("wait", count, 0, 1)) return NULL;
  return WaitAndLetGo(self, count == 1 ? args[0] : NULL, Now());
}

static PyObject* HandleDone(Handle* self, PyObject* unused) {
  (void)unused;
  return PyBool_FromLong(hs_poll(self->pointer));
}

static PyObject* HandleLaunched(Handle* self, PyObject* unused) {
  (void)unused;
  return PyBool_FromLong(hs_launched(self->pointer));
}

static PyObject* HandleWaitOnStream(Handle* self, PyObject* const* args, Py_ssize_t count) {
  if (!CheckCount("wait_on_stream", count, 1, 2)) return NULL;
  void* address = PyLong_AsVoidPtr(args[0]);
  if (address == NULL && PyErr_Occurred()) return NULL;
  hs_code code = HS_OK;
  if (!Wait(self, hs_wait_on_stream, address, count == 2 ? args[1] : NULL, Now(), &code)) {
    return NULL;
  }
  if (code != HS_OK) return Raise(code);
  Py_RETURN_NONE;
}

static PyObject* HandleAddress(Handle* self, void* unused) {
  (void)unused;
  return PyLong_FromVoidPtr(self->pointer);
}

static void HandleDealloc(Handle* self) {
  if (self->is_view && self->registry != NULL) {
    hs_view_free(self->registry->runtime, self->pointer);
  } else if (self->pointer != NULL) {
    hs_handle_free(self->pointer);
  }
  Py_CLEAR(self->keep_alive);
  Py_CLEAR(self->registry);
  Free((PyObject*)self);
}

static PyMethodDef handle_methods[] = {
    {"done", (PyCFunction)HandleDone, METH_NOARGS,
     "Tell whether the operation is done, well or not."},
    {"wait", (PyCFunction)(void (*)(void))HandleWait, METH_FASTCALL,
     "Wait until the operation is done; raise what went wrong with it.\n\n"
     "Raises TimeoutError when it is not done after so many seconds (None: wait for ever). The\n"
     "calling thread drives the engine meanwhile; other Python threads can run."},
    {"launched", (PyCFunction)HandleLaunched, METH_NOARGS,
     "Tell whether wait_on_stream() would return at once."},
    {"wait_on_stream", (PyCFunction)(void (*)(void))HandleWaitOnStream, METH_FASTCALL,
     "Make what is enqueued on a CUDA stream, given by its address, wait for the operation.\n\n"
     "The host waits until the device has been given the operation's work, not until that is\n"
     "done: the tensors' memory is kept alive until then. Raises what went wrong by then, and\n"
     "TimeoutError as wait() does; what goes wrong on the device is told by later operations."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_attributes[] = {
    {"address", (getter)HandleAddress, NULL, "Where the hs_handle lies.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot handle_slots[] = {
    {Py_tp_doc, "One operation that is enqueued. One thread at a time may use it."},
    {Py_tp_methods, handle_methods},
    {Py_tp_getset, handle_attributes},
    {Py_tp_dealloc, HandleDealloc},
    {0, NULL}};

static PyType_Spec handle_spec = {
    "horoscale._core._in_flight.Handle", sizeof(Handle), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, handle_slots};

/* ---------------------------------------------------------------- InFlight */

static PyObject* NewInFlight(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *owner, *address, *handles;
  static char* names[] = {"owner", "runtime", "handles", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO", names, &owner, &address, &handles)) {
    return NULL;
  }
  void* runtime = PyLong_AsVoidPtr(address);
  if (runtime == NULL && PyErr_Occurred()) return NULL;
  if (!PyType_Check(handles) || !PyType_IsSubtype((PyTypeObject*)handles, handle_base)) {
    PyErr_SetString(PyExc_TypeError, "the class of the handles has to be one of Handle's");
    return NULL;
  }
  InFlight* self = (InFlight*)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (self == NULL) return NULL;
  Py_INCREF(owner);
  self->owner = owner;
  self->runtime = runtime;
  Py_INCREF(handles);
  self->handles = (PyTypeObject*)handles;
  self->ring.older = self->ring.newer = &self->ring;
  return (PyObject*)self;
}

static void InFlightDealloc(
    InFlight* self) { /* nothing is in flight: operations would refer to it */
  Py_CLEAR(self->owner);
  Py_CLEAR(self->handles);
  Free((PyObject*)self);
}

static Py_ssize_t InFlightLength(InFlight* self) { return self->count; }

typedef enum { kRequest, kSend, kReceive, kReceiveView } Start;

/* Starts the message at an address, with other memory. */
static PyObject* StartAgain(InFlight* self, Start start, PyObject* const* args) {
  const hs_message* described = PyLong_AsVoidPtr(args[0]);
  if (described == NULL && PyErr_Occurred()) return NULL;
  hs_message message = *described;
  message.memory = PyLong_AsVoidPtr(args[2]);
  if (message.memory == NULL && PyErr_Occurred()) return NULL;
  message.will_wait = PyObject_IsTrue(args[3]);
  if (message.will_wait < 0) return NULL;
  Handle* handle = NewHandle(self);
  if (handle == NULL) return NULL;
  hs_code code = HS_OK;
  if (start != kSend) {
    code = hs_recv(self->runtime, &message, &handle->pointer);
  } else if (!message.will_wait && hs_is_busy(self->runtime)) {
    Py_BEGIN_ALLOW_THREADS; /* it may execute part of the pending operations */
    code = hs_send(self->runtime, &message, &handle->pointer);
    Py_END_ALLOW_THREADS;
  } else {
    /* Keep the GIL: releasing it would cost more than this call. */
    code = hs_send(self->runtime, &message, &handle->pointer);
  }
  if (code == HS_OK) return Begin(self, handle, args[1]);
  Raise(code);
  Py_DECREF(handle);
  return NULL;
}

/* StartAgain() and wait; returns the message's result. Takes a timeout instead of will_wait. */
static PyObject* RunAgain(InFlight* self, Start start, PyObject* const* args, Py_ssize_t count) {
  if (!CheckCount("running a message", count, 4, 4)) return NULL;
  PyObject* started[] = {args[0], args[1], args[2], Py_True};
  Handle* handle = (Handle*)StartAgain(self, start, started);
  if (handle == NULL) return NULL;
  PyObject* result = WaitAndLetGo(handle, args[3], Now());
  if (result != NULL) {
    Py_DECREF(result);
    result = PyLong_FromLongLong(hs_result(handle->pointer));
  }
  Py_DECREF(handle);
  return result;
}

static PyObject* StartOne(InFlight* self, Start start, PyObject* const* args, Py_ssize_t count) {
  if (!CheckCount("starting an operation", count, 2, 2)) return NULL;
  const void* what = PyLong_AsVoidPtr(args[0]);
  if (what == NULL && PyErr_Occurred()) return NULL;
  Handle* handle = NewHandle(self);
  if (handle == NULL) return NULL;
  hs_code code = HS_OK;
  Py_BEGIN_ALLOW_THREADS; /* it may query a device for the position of its stream */
  if (start == kRequest) {
    code = hs_enqueue(self->runtime, what, &handle->pointer);
  } else if (start == kSend) {
    code = hs_send(self->runtime, what, &handle->pointer);
  } else {
    code = hs_recv(self->runtime, what, &handle->pointer);
  }
  Py_END_ALLOW_THREADS;
  handle->is_view = start == kReceiveView;
  if (code == HS_OK) return Begin(self, handle, args[1]);
  Raise(code);
  Py_DECREF(handle);
  return NULL;
}

static PyObject* InFlightEnqueue(InFlight* self, PyObject* const* args, Py_ssize_t count) {
  return StartOne(self, kRequest, args, count);
}

static PyObject* InFlightSend(InFlight* self, PyObject* const* args, Py_ssize_t count) {
  return count == 4 ? StartAgain(self, kSend, args) : StartOne(self, kSend, args, count);
}

static PyObject* InFlightReceive(InFlight* self, PyObject* const* args, Py_ssize_t count) {
  return count == 4 ? StartAgain(self, kReceive, args) : StartOne(self, kReceive, args, count);
}

static PyObject* InFlightRunSend(InFlight* self, PyObject* const* args, Py_ssize_t count) {
  return RunAgain(self, kSend, args, count);
}

static PyObject* InFlightRunReceive(InFlight* self, PyObject* const* args, Py_ssize_t count) {
  return RunAgain(self, kReceive, args, count);
}

static PyObject* InFlightReceiveView(InFlight* self, PyObject* const* args, Py_ssize_t count) {
  return StartOne(self, kReceiveView, args, count);
}

static PyObject* InFlightReap(InFlight* self, PyObject* unused) {
  (void)unused;
  for (Py_ssize_t left = self->count; left > 0; --left) ReapOldest(self);
  Py_RETURN_NONE;
}

static PyMethodDef in_flight_methods[] = {
    {"enqueue", (PyCFunction)(void (*)(void))InFlightEnqueue, METH_FASTCALL,
     "Do hs_enqueue() with the hs_request at an address; return the handle.\n\n"
     "The second argument, the owners of its memory, is kept until the operation is done."},
    {"send", (PyCFunction)(void (*)(void))InFlightSend, METH_FASTCALL,
     "Do hs_send() with the hs_message at an address, as enqueue().\n\n"
     "Two more arguments are the memory, which is the host's, and will_wait of this one message."},
    {"receive", (PyCFunction)(void (*)(void))InFlightReceive, METH_FASTCALL,
     "Do hs_recv() with the hs_message at an address, as send()."},
    {"run_send", (PyCFunction)(void (*)(void))InFlightRunSend, METH_FASTCALL,
     "Do send() and wait: of an address, the owners of the memory, the memory and a timeout.\n\n"
     "Returns hs_result(). The timeout is that of Handle.wait(): the message goes on after it."},
    {"run_receive", (PyCFunction)(void (*)(void))InFlightRunReceive, METH_FASTCALL,
     "Do receive() and wait, as run_send()."},
    {"receive_view", (PyCFunction)(void (*)(void))InFlightReceiveView, METH_FASTCALL,
     "Do receive() for a view, which the end of the handle gives back."},
    {"reap", (PyCFunction)InFlightReap, METH_NOARGS, "Forget all operations that are done."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot in_flight_slots[] = {
    {Py_tp_doc,
     "The operations of a runtime that may not be done, which keeps their memory alive.\n\n"
     "Made of the owner of the runtime, its address, and the class of the handles."},
    {Py_tp_new, NewInFlight},
    {Py_tp_dealloc, InFlightDealloc},
    {Py_tp_methods, in_flight_methods},
    {Py_sq_length, InFlightLength},
    {0, NULL}};

static PyType_Spec in_flight_spec = {"horoscale._core._in_flight.InFlight", sizeof(InFlight), 0,
                                     Py_TPFLAGS_DEFAULT, in_flight_slots};

/* ---------------------------------------------------------------- Template */

static PyObject* NewTemplate(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *registry, *address;
  static char* names[] = {"in_flight", "request", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", names, in_flight_type, &registry,
                                   &address)) {
    return NULL;
  }
  const hs_request* request = PyLong_AsVoidPtr(address);
  if (request == NULL && PyErr_Occurred()) return NULL;
  Template* self = (Template*)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
  if (self == NULL) return NULL;
  Py_INCREF(registry);
  self->registry = (InFlight*)registry;
  const hs_code code = hs_prepare(self->registry->runtime, request, &self->pointer);
  if (code == HS_OK) return (PyObject*)self;
  Raise(code);
  Py_DECREF(self);
  return NULL;
}

static void TemplateDealloc(Template* self) {
  if (self->pointer != NULL) hs_template_free(self->pointer);
  Py_CLEAR(self->registry);
  Free((PyObject*)self);
}

/* Reads the addresses of the values and of the result. */
static int ReadAddresses(PyObject* const* args, uintptr_t* source, uintptr_t* target) {
  *source = PyLong_AsSize_t(args[0]);
  if (*source == (size_t)-1 && PyErr_Occurred()) return 0;
  *target = args[1] == args[0] ? *source : PyLong_AsSize_t(args[1]);
  return *target != (size_t)-1 || !PyErr_Occurred();
}

static PyObject* TemplateStart(Template* self, PyObject* const* args, Py_ssize_t count) {
  uintptr_t source = 0, target = 0;
  if (!CheckCount("start", count, 3, 3) || !ReadAddresses(args, &source, &target)) return NULL;
  Handle* handle = NewHandle(self->registry);
  if (handle == NULL) return NULL;
  /* Keep the GIL: releasing it would cost more than this call. */
  handle->pointer = hs_enqueue_again(self->pointer, source, target, 0);
  if (handle->pointer != NULL) return Begin(self->registry, handle, args[2]);
  Raise(hs_error()->code);
  Py_DECREF(handle);
  return NULL;
}

static PyObject* TemplateRun(Template* self, PyObject* const* args, Py_ssize_t count) {
  uintptr_t source = 0, target = 0;
  if (!CheckCount("run", count, 3, 4) || !ReadAddresses(args, &source, &target)) return NULL;
  PyObject* timeout = count == 4 ? args[3] : Py_None;
  double slice = kWaitSliceSeconds;
  double began = 0;
  if (timeout != Py_None) {
    began = Now();
    const double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) return NULL;
    if (seconds < slice) slice = seconds < 0 ? 0 : seconds;
  }
  hs_code code = HS_OK;
  Py_BEGIN_ALLOW_THREADS;
  code = hs_run_again(self->pointer, source, target, slice);
  Py_END_ALLOW_THREADS;
  if (code == HS_OK) Py_RETURN_NONE;
  if (code != HS_TIMEOUT) return Raise(code);
  hs_handle* unfinished = hs_take_unfinished();
  Handle* handle = NewHandle(self->registry);
  if (handle == NULL) {
    /* No object keeps the memory alive, so free the handle only when the operation is done. */
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_BEGIN_ALLOW_THREADS;
    while (hs_wait(unfinished, kWaitSliceSeconds) == HS_TIMEOUT) {
    }
    hs_handle_free(unfinished);
    Py_END_ALLOW_THREADS;
    PyErr_Restore(type, value, trace);
    return NULL;
  }
  handle->pointer = unfinished;
  Begin(self->registry, handle, args[2]);
  PyObject* done = PyErr_CheckSignals() == 0 ? WaitAndLetGo(handle, timeout, began) : NULL;
  Py_DECREF(handle);
  return done;
}

static PyMethodDef template_methods[] = {
    {"start", (PyCFunction)(void (*)(void))TemplateStart, METH_FASTCALL,
     "Enqueue the operation with values and result at two addresses; return the handle.\n\n"
     "The third argument, the owners of the memory, is kept until the operation is done."},
    {"run", (PyCFunction)(void (*)(void))TemplateRun, METH_FASTCALL,
     "Do start() and wait. Takes a timeout as wait() does: the operation goes on after it."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot template_slots[] = {
    {Py_tp_doc,
     "An operation that the library keeps prepared, of the hs_request at an address.\n\n"
     "Any number of threads may use it. Raises as hs_prepare() fails."},
    {Py_tp_new, NewTemplate},
    {Py_tp_dealloc, TemplateDealloc},
    {Py_tp_methods, template_methods},
    {0, NULL}};

static PyType_Spec template_spec = {"horoscale._core._in_flight.Template", sizeof(Template), 0,
                                    Py_TPFLAGS_DEFAULT, template_slots};

/* ---------------------------------------------------------------- the module */

static PyTypeObject* AddType(PyObject* module, const char* name, PyType_Spec* spec) {
  PyObject* type = PyType_FromSpec(spec);
  if (type == NULL) return NULL;
  Py_INCREF(type);
  if (PyModule_AddObject(module, name, type) < 0) {
    Py_DECREF(type);
    Py_DECREF(type);
    return NULL;
  }
  return (PyTypeObject*)type;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "_in_flight",
                                        "Operations that are in flight.",
                                        -1,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__in_flight(void) {
  PyObject* module = PyModule_Create(&definition);
  if (module == NULL) return NULL;
  handle_base = AddType(module, "Handle", &handle_spec);
  in_flight_type = AddType(module, "InFlight", &in_flight_spec);
  PyTypeObject* template = AddType(module, "Template", &template_spec);
  if (handle_base != NULL && in_flight_type != NULL && template != NULL) return module;
  Py_DECREF(module);
  return NULL;
}
