// Owners of TensorFlow's C objects.
#pragma once

#include <memory>
#include <string>

#include "c_api.h"

namespace horoscale::tensorflow {

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, TensorDeleter>;

struct ShapeDeleter {
  void operator()(TF_ShapeHandle* shape) const { TF_DeleteShapeHandle(shape); }
};
using ShapePtr = std::unique_ptr<TF_ShapeHandle, ShapeDeleter>;

// A status that functions of the C API fill in.
class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  Status(TF_Code code, const std::string& message) : Status() {
    TF_SetStatus(status_, code, message.c_str());
  }
  ~Status() { TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  bool ok() const { return TF_GetCode(status_) == TF_OK; }
  TF_Status* get() const { return status_; }

 private:
  TF_Status* status_;
};

}  // namespace horoscale::tensorflow
