#include "data_types.h"

#include "horoscale/horoscale.h"

namespace horoscale::tensorflow {

int32_t DataTypeOf(TF_DataType type) {
  switch (type) {
    case TF_UINT8:
      return HS_UINT8;
    case TF_INT8:
      return HS_INT8;
    case TF_UINT16:
      return HS_UINT16;
    case TF_INT16:
      return HS_INT16;
    case TF_INT32:
      return HS_INT32;
    case TF_INT64:
      return HS_INT64;
    case TF_HALF:
      return HS_FLOAT16;
    case TF_BFLOAT16:
      return HS_BFLOAT16;
    case TF_FLOAT:
      return HS_FLOAT32;
    case TF_DOUBLE:
      return HS_FLOAT64;
    case TF_BOOL:
      return HS_BOOL;
    case TF_COMPLEX64:
      return HS_COMPLEX64;
    case TF_COMPLEX128:
      return HS_COMPLEX128;
  }
  return -1;  // which the runtime refuses
}

size_t SizeOf(TF_DataType type) {
  switch (type) {
    case TF_UINT8:
    case TF_INT8:
    case TF_BOOL:
      return 1;
    case TF_UINT16:
    case TF_INT16:
    case TF_HALF:
    case TF_BFLOAT16:
      return 2;
    case TF_INT32:
    case TF_FLOAT:
      return 4;
    case TF_INT64:
    case TF_DOUBLE:
    case TF_COMPLEX64:
      return 8;
    case TF_COMPLEX128:
      return 16;
  }
  return 0;
}

}  // namespace horoscale::tensorflow
