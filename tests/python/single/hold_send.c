/* Loaded before LIBRARY: hs_send() says that it was called, and waits until it is answered, if the
 * environment names the two descriptors and it is called without will_wait. Exits with 3 where
 * nobody answers. */
#include <dlfcn.h>
#include <horoscale/horoscale.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

hs_code hs_send(hs_runtime* runtime, const hs_message* message, hs_handle** out) {
  hs_code (*real)(hs_runtime*, const hs_message*, hs_handle**);
  /* It is loaded by now, but not where RTLD_NEXT looks. */
  *(void**)&real = dlsym(dlopen(getenv("LIBRARY"), RTLD_LAZY | RTLD_NOLOAD), "hs_send");
  const char* said = getenv("SAID");
  if (said != NULL && !message->will_wait) {
    struct pollfd answer = {atoi(getenv("ANSWERED")), POLLIN, 0};
    char byte = 0;
    if (write(atoi(said), &byte, 1) != 1 || poll(&answer, 1, 10000) != 1) _exit(3);
    if (read(answer.fd, &byte, 1) != 1) _exit(3);
  }
  return real(runtime, message, out);
}
