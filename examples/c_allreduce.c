/* An allreduce in C, with nothing but horoscale.h and the library.
 *
 * Both are part of the Python package, which prints their location:
 *
 *     FLAGS=$(python -m horoscale.config --cflags --libs)
 *     cc examples/c_allreduce.c -o c_allreduce $FLAGS
 *     horoscalerun -np 2 ./c_allreduce
 *
 * Every rank contributes its rank + 1 and prints the sum over all ranks. With 2 ranks, in either
 * order:
 *
 *     rank 0 of 2: the sum is 3
 *     rank 1 of 2: the sum is 3
 *
 * Without horoscalerun it is the only rank, and the sum is 1.
 */
#include <stdio.h>
#include <stdlib.h>

#include "horoscale/horoscale.h"

/* Ends the program with the library's message if a call failed. */
static void check(hs_code code, const char* what) {
  if (code != HS_OK) {
    fprintf(stderr, "%s: %s\n", what, hs_error()->message);
    exit(1);
  }
}

int main(void) {
  if (hs_abi_version() != HS_ABI_VERSION) {
    fprintf(stderr, "horoscale.h has version %d, the library %d\n", HS_ABI_VERSION,
            hs_abi_version());
    return 1;
  }
  hs_runtime* runtime = NULL;
  check(hs_init(NULL, &runtime), "hs_init"); /* null: configured by the HOROSCALE_* variables */

  hs_topology topology;
  check(hs_get_topology(runtime, &topology), "hs_get_topology");

  float value = (float)(topology.rank + 1);
  const int64_t shape[] = {1};
  const hs_tensor tensor = {
      .in = &value, .out = &value, .dtype = HS_FLOAT32, .num_dims = 1, .shape = shape};
  const hs_request request = {
      .struct_size = sizeof request,
      .kind = HS_ALLREDUCE,
      .name = "value",
      .process_set = 0, /* all ranks */
      .tensors = &tensor,
      .num_tensors = 1,
      .reduce_op = HS_SUM,
      .prescale = 1.0,
      .postscale = 1.0,
      .will_wait = 1,
  };
  hs_handle* handle = NULL;
  check(hs_enqueue(runtime, &request, &handle), "hs_enqueue");
  check(hs_wait(handle, -1.0), "hs_wait");
  printf("rank %d of %d: the sum is %g\n", topology.rank, topology.size, value);

  hs_handle_free(handle);
  hs_runtime_free(runtime);
  return 0;
}
