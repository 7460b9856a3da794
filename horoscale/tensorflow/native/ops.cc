// Tells TensorFlow of the ops when the library is loaded: inputs, outputs, attributes, shapes.
#include "ops.h"

#include <cstdio>

#include "raii.h"

namespace horoscale::tensorflow {
namespace {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

constexpr const char* kType =
    "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool, complex64, "
    "complex128}";

// Rows of an output that only the operation itself will tell.
constexpr auto kUnknownRows = static_cast<size_t>(-1);

void SetShape(TF_ShapeInferenceContext* context, int output, const ShapePtr& shape,
              TF_Status* status) {
  if (TF_GetCode(status) == TF_OK) {
    TF_ShapeInferenceContextSetOutput(context, output, shape.get(), status);
  }
}

ShapePtr InputShape(TF_ShapeInferenceContext* context, int input, TF_Status* status) {
  ShapePtr shape(TF_NewShapeHandle());
  TF_ShapeInferenceContextGetInput(context, input, shape.get(), status);
  return shape;
}

// Shape of input `i` with another number of rows.
void SetShapeWithOtherRows(TF_ShapeInferenceContext* context, int i, TF_Status* status) {
  ShapePtr input = InputShape(context, i, status);
  ShapePtr row(TF_NewShapeHandle());
  ShapePtr result(TF_NewShapeHandle());
  ShapePtr rows(TF_ShapeInferenceContextVectorFromSize(context, kUnknownRows));
  if (TF_GetCode(status) != TF_OK) return;
  if (TF_ShapeInferenceContextRankKnown(context, input.get()) == 0) {
    SetShape(context, i, input, status);
    return;
  }
  TF_ShapeInferenceContextWithRankAtLeast(context, input.get(), 1, input.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSubshape(context, input.get(), 1, INT64_MAX, row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), row.get(), result.get(), status);
  SetShape(context, i, result, status);
}

void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    SetShape(context, i, InputShape(context, i, status), status);
  }
}

void OtherRows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    SetShapeWithOtherRows(context, i, status);
  }
}

void AlltoallShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  SetShapeWithOtherRows(context, 0, status);
  ShapePtr received(TF_ShapeInferenceContextVectorFromSize(context, kUnknownRows));
  SetShape(context, 1, received, status);
}

// Only the root of a reduction has a result, and the op does not know who that is.
void NoShapes(TF_ShapeInferenceContext*, TF_Status*) {}

void ScatterShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  SetShapeWithOtherRows(context, 0, status);
}

void Scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  ShapePtr scalar(TF_ShapeInferenceContextScalar(context));
  SetShape(context, 0, scalar, status);
}

// The outputs of an op without those whose shape is not set here keep an unknown one.
void Define(TF_OpDefinitionBuilder* op, OpType type) {
  const auto attribute = [op](const char* spec) { TF_OpDefinitionBuilderAddAttr(op, spec); };
  const auto input = [op](const char* spec) { TF_OpDefinitionBuilderAddInput(op, spec); };
  const auto output = [op](const char* spec) { TF_OpDefinitionBuilderAddOutput(op, spec); };
  const auto shapes = [op](ShapeFunction function) {
    TF_OpDefinitionBuilderSetShapeInferenceFunction(op, function);
  };
  const std::string one_type = std::string("T: ") + kType;
  const std::string types = std::string("T: list(") + kType + ") >= 1";
  TF_OpDefinitionBuilderSetIsStateful(op, true);  // not folded into a constant, not merged
  switch (type) {
    case OpType::kAllreduce:
    case OpType::kReducescatter:
    case OpType::kReduce:
      input("tensors: T");
      output("results: T");
      attribute(types.c_str());
      attribute("reduce_op: int");
      attribute("prescale_bits: int");  // a double's bits: attributes have but float
      attribute("postscale_bits: int");
      attribute("encoding: int");  // 0: none
      if (type == OpType::kAllreduce) shapes(SameShapes);
      if (type == OpType::kReduce) shapes(NoShapes);
      if (type == OpType::kReducescatter) {
        attribute("splits: list(int)");  // empty: evenly
        shapes(OtherRows);
      }
      break;
    case OpType::kAllgather:
      input("tensors: T");
      output("results: T");
      output("rows: int64");  // by tensor and member
      attribute(types.c_str());
      shapes(OtherRows);
      break;
    case OpType::kBroadcast:
      input("tensors: T");
      output("results: T");
      attribute(types.c_str());
      shapes(SameShapes);
      break;
    case OpType::kGather:
      input("tensor: T");
      output("result: T");
      output("rows: int32");  // by member; at the root
      attribute(one_type.c_str());
      shapes(AlltoallShapes);
      break;
    case OpType::kScatter:
      input("tensor: T");
      input("splits: int32");  // empty: evenly
      output("result: T");
      attribute(one_type.c_str());
      shapes(ScatterShapes);
      break;
    case OpType::kAlltoall:
      input("tensor: T");
      input("splits: int32");  // empty: evenly
      output("result: T");
      output("received_splits: int32");
      attribute(one_type.c_str());
      shapes(AlltoallShapes);
      break;
    case OpType::kMessages:
      input("tensors: T");   // what is sent, or what has the shape of what is received
      output("results: T");  // a zero, or what was received
      output("sources: int32");
      attribute(types.c_str());
      attribute("sends: list(int)");  // whether each is sent
      attribute("peers: list(int)");  // ranks; -1: any
      attribute("tags: list(int)");
      attribute("channel: int");
      shapes(NoShapes);
      break;
    case OpType::kJoin:
      output("last_rank: int32");
      shapes(Scalar);
      break;
    case OpType::kTopology:
      output("value: int32");
      attribute("question: int");
      shapes(Scalar);
      break;
    case OpType::kSelfTest:
      input("number: int32");
      output("same: int32");
      shapes(Scalar);
      return;
  }
  if (HasRoot(type)) attribute("root_rank: int");
  attribute("process_set: int");
  attribute("tensor_name: string");  // empty: matched by the order of the calls
  attribute("priority: int");
}

bool RegisterAll() {
  for (const OpName& op : kOps) {
    TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(op.name);
    Define(builder, op.type);
    Status status;
    TF_RegisterOpDefinition(builder, status.get());
    if (!status.ok()) {
      std::fprintf(stderr, "horoscale: TensorFlow refused the op %s: %s\n", op.name,
                   TF_Message(status.get()));
    }
  }
  return true;
}

[[maybe_unused]] const bool kRegistered = RegisterAll();

}  // namespace
}  // namespace horoscale::tensorflow
