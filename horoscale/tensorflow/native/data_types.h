// TensorFlow's element types as the runtime's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "c_api.h"

namespace horoscale::tensorflow {

// An hs_dtype; -1, which the runtime refuses, of a type that it can't move.
int32_t DataTypeOf(TF_DataType type);

// Of one element of a type that the runtime can move.
size_t SizeOf(TF_DataType type);

}  // namespace horoscale::tensorflow
