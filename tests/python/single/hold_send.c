/* Loaded before LIBRARY. hs_send() reports that it was called, and waits for an answer, if the
 * environment names the two descriptors and it is called without will_wait. Exits with 3 if there
 * is no answer. */
#include <dlfcn.h>
#include <horoscale/horoscale.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

hs_code hs_send(hs_runtime* runtime, const hs_message* message, hs_handle** out) {
  hs_code (*real)(hs_runtime*, const hs_message*, hs_handle**);
  /* It is already loaded, but RTLD_NEXT does not find it. */
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
