// Compares the table of one ABI with the mpi.h that this is compiled against; needs no library.
// Compiled with TABLE, and with HANDLES_ARE_SYMBOLS where handles are addresses in the library.
#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <string_view>

#include "transport/mpi/mpi_constants.h"

using horoscale::MpiConstant;
using horoscale::MpiHandle;

namespace {

int wrong = 0;

void Check(const char* name, bool equal) {
  if (equal) return;
  std::fprintf(stderr, "%s differs from the header\n", name);
  ++wrong;
}

#ifdef HANDLES_ARE_SYMBOLS
// The macro's text names the symbol, so that it need not be resolved.
#define TEXT(...) #__VA_ARGS__
#define TEXT_OF(macro) TEXT(macro)
#define CHECK_HANDLE(field, macro) \
  Check(#macro, std::string_view(TEXT_OF(macro)).find(TABLE.field.symbol) != std::string_view::npos)
#else
#define CHECK_HANDLE(field, macro) Check(#macro, TABLE.field.value == (MpiHandle)(macro))
#endif

}  // namespace

static_assert(TABLE.any_source == MPI_ANY_SOURCE);
static_assert(TABLE.thread_multiple == MPI_THREAD_MULTIPLE);
static_assert(TABLE.status_source == offsetof(MPI_Status, MPI_SOURCE));
static_assert(TABLE.status_tag == offsetof(MPI_Status, MPI_TAG));
static_assert(sizeof(MPI_Status) <= horoscale::kMpiStatusBytes);
static_assert(sizeof(MPI_Comm) <= sizeof(MpiHandle));
static_assert(MPI_SUCCESS == 0);

int main() {
  CHECK_HANDLE(comm_world, MPI_COMM_WORLD);
  CHECK_HANDLE(comm_null, MPI_COMM_NULL);
  CHECK_HANDLE(request_null, MPI_REQUEST_NULL);
  CHECK_HANDLE(byte, MPI_BYTE);
  CHECK_HANDLE(errors_return, MPI_ERRORS_RETURN);
  CHECK_HANDLE(uint8, MPI_UINT8_T);
  CHECK_HANDLE(int8, MPI_INT8_T);
  CHECK_HANDLE(uint16, MPI_UINT16_T);
  CHECK_HANDLE(int16, MPI_INT16_T);
  CHECK_HANDLE(int32, MPI_INT32_T);
  CHECK_HANDLE(int64, MPI_INT64_T);
  CHECK_HANDLE(float32, MPI_FLOAT);
  CHECK_HANDLE(float64, MPI_DOUBLE);
  CHECK_HANDLE(sum, MPI_SUM);
  CHECK_HANDLE(min, MPI_MIN);
  CHECK_HANDLE(max, MPI_MAX);
  CHECK_HANDLE(product, MPI_PROD);
  Check("MPI_IN_PLACE", TABLE.in_place == (MpiHandle)MPI_IN_PLACE);
  Check("MPI_STATUS_IGNORE", TABLE.status_ignore == (MpiHandle)MPI_STATUS_IGNORE);
  return wrong == 0 ? 0 : 1;
}
