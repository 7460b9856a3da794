/* Faults at exact moments, without changes to the code under test: a shim that is preloaded into
 * the victim (LD_PRELOAD).
 *
 * FAULT_CALL    the call before whose first execution the fault happens: connect (over IP: to the
 *               rendezvous), link (the handshake of a link: sendmsg() with descriptors; over IP
 *               connect() and accept4()), shutdown (of a socket: the end of a link). Without it
 *               only fault_guard() has an effect.
 * FAULT_ACTION  kill, stop, exit, network (waits for a fault of the network), or fail: the call
 *               returns EIO
 * FAULT_FILE    gets the monotonic time of the fault, in nanoseconds
 * FAULT_DONE    file that is created after the fault of the network
 *
 * fault_guard() triggers the fault at the first access to a page, so that a process ends in the
 * middle of copying a tensor. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static atomic_flag struck = ATOMIC_FLAG_INIT;
static atomic_int resumed;
static void* guarded;
static size_t guarded_size;

static void note_time(void) {
  struct timespec now;
  char text[32];
  const char* path = getenv("FAULT_FILE");
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int length =
      snprintf(text, sizeof(text), "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, text, (size_t)length) != length) abort();
  close(fd);
}

static void await_network(void) {
  const struct timespec pause = {0, 1000000};
  while (access(getenv("FAULT_DONE"), F_OK) != 0) nanosleep(&pause, NULL);
}

/* Returns for "fail" and "raise", and for "stop" when the process continues. */
static void act(const char* action) {
  note_time();
  if (strcmp(action, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(action, "exit") == 0) _exit(0);
  if (strcmp(action, "stop") == 0) raise(SIGSTOP);
  if (strcmp(action, "network") == 0) await_network();
}

/* Whether the call must fail. */
static int strike_at(const char* call) {
  const char* wanted = getenv("FAULT_CALL");
  const char* action = getenv("FAULT_ACTION");
  if (wanted == NULL || action == NULL || strcmp(wanted, call) != 0) return 0;
  if (atomic_flag_test_and_set(&struck)) return 0;
  act(action);
  return strcmp(action, "fail") == 0;
}

/* Whether it is the rendezvous of the job's ranks. */
static int is_rendezvous(const struct sockaddr* address) {
  const char* text = getenv("HOROSCALE_RENDEZVOUS");
  const char* colon = text == NULL ? NULL : strrchr(text, ':');
  const in_port_t port = address->sa_family == AF_INET6
                             ? ((const struct sockaddr_in6*)address)->sin6_port
                             : ((const struct sockaddr_in*)address)->sin_port;
  return colon != NULL && ntohs(port) == atoi(colon + 1);
}

int connect(int fd, const struct sockaddr* address, socklen_t length) {
  int (*real)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  const int is_ip = address->sa_family == AF_INET || address->sa_family == AF_INET6;
  if (is_ip && strike_at(is_rendezvous(address) ? "connect" : "link")) {
    errno = EIO;
    return -1;
  }
  return real(fd, address, length);
}

int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  int (*real)(int, struct sockaddr*, socklen_t*, int) = dlsym(RTLD_NEXT, "accept4");
  const int accepted = real(fd, address, length, flags);
  const int is_ip = accepted >= 0 && address != NULL && address->sa_family != AF_UNIX;
  if (is_ip && strike_at("link")) {
    close(accepted);
    errno = EIO;
    return -1;
  }
  return accepted;
}

ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  ssize_t (*real)(int, const struct msghdr*, int) = dlsym(RTLD_NEXT, "sendmsg");
  if (message->msg_controllen > 0 && strike_at("link")) {
    errno = EIO;
    return -1;
  }
  return real(fd, message, flags);
}

int shutdown(int fd, int how) {
  int (*real)(int, int) = dlsym(RTLD_NEXT, "shutdown");
  if (strike_at("shutdown")) {
    errno = EIO;
    return -1;
  }
  return real(fd, how);
}

static void on_access(int signum, siginfo_t* info, void* context) {
  (void)context;
  char* const page = guarded;
  char* const address = info->si_addr;
  if (page == NULL || address < page || address >= page + guarded_size) {
    signal(signum, SIG_DFL); /* a crash of its own */
    return;
  }
  mprotect(guarded, guarded_size, PROT_READ | PROT_WRITE);
  act(getenv("FAULT_ACTION"));
  /* "raise": the main thread raises, while the copying thread stays in here. */
  const struct timespec pause = {0, 1000000};
  for (int i = 0; i < 10000 && strcmp(getenv("FAULT_ACTION"), "raise") == 0; ++i) {
    if (atomic_load(&resumed)) break;
    nanosleep(&pause, NULL);
  }
}

/* Triggers the fault at the first access to the pages. */
void fault_guard(void* pages, size_t size) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = on_access;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  guarded = pages;
  guarded_size = size;
  sigaction(SIGSEGV, &action, NULL);
  if (mprotect(pages, size, PROT_NONE) != 0) abort();
}

void fault_resume(void) { atomic_store(&resumed, 1); }

void fault_note_time(void) { note_time(); }

void fault_await_network(void) { await_network(); }
