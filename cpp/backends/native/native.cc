#include "backends/native/native.h"

#include <cassert>
#include <utility>

#include "collectives/ordered_exchange.h"

namespace horoscale {
namespace {

std::vector<Segment> Segments(const FusedOperation& operation) {
  std::vector<Segment> segments;
  segments.reserve(operation.pieces.size());
  for (const FusedPiece& piece : operation.pieces) {
    segments.push_back({piece.in, piece.out, piece.bytes});
  }
  return segments;
}

std::vector<TensorPart> Parts(const FusedOperation& operation) {
  std::vector<TensorPart> parts;
  if (operation.residuals.empty()) return parts;
  for (const FusedPiece& piece : operation.pieces) parts.push_back(piece.part);
  return parts;
}

std::vector<AllgatherItem> Items(const FusedOperation& operation) {
  std::vector<AllgatherItem> items;
  items.reserve(operation.pieces.size());
  for (const FusedPiece& piece : operation.pieces) {
    items.push_back({piece.in, piece.rows, piece.row_bytes, {piece.out, piece.out_rows}});
  }
  return items;
}

// Operations that move data, with members in the order of the set.
std::unique_ptr<Collective> StartMovement(Exchange& exchange, FusedOperation& operation) {
  const uint32_t root = operation.PositionOf(operation.root);
  switch (operation.kind) {
    case OpKind::kAllgather:
      return MakeAllgather(exchange, {Items(operation), &operation.results});
    case OpKind::kGather:
      return MakeGather(exchange, {root, Items(operation), &operation.results});
    case OpKind::kScatter: {
      operation.results.resize(1);
      const FusedPiece& piece = operation.pieces.front();
      return MakeScatter(exchange, {root, piece.row_bytes, piece.in, operation.splits,
                                    &operation.results.front()});
    }
    case OpKind::kAlltoall: {
      operation.results.resize(1);
      const FusedPiece& piece = operation.pieces.front();
      return MakeAlltoall(exchange, {piece.in,
                                     piece.row_bytes,
                                     operation.splits,
                                     &operation.results.front(),
                                     {piece.out, piece.out_rows}});
    }
    default:
      assert(false && "does not count rows");
      return nullptr;
  }
}

}  // namespace

std::unique_ptr<Collective> StartNative(Exchange& exchange, FusedOperation& operation) {
  switch (operation.kind) {
    case OpKind::kAllreduce:
      return MakeAllreduce(exchange, {operation.reduction,
                                      Segments(operation),
                                      operation.absent,
                                      operation.encoding,
                                      {},
                                      Parts(operation),
                                      operation.encoded});
    case OpKind::kBroadcast:
      return MakeBroadcast(exchange, {operation.root, Segments(operation), operation.absent});
    case OpKind::kReducescatter: {
      ReducescatterArgs args{operation.reduction, {},
                             operation.encoding,  operation.splits,
                             operation.positions, Parts(operation),
                             operation.encoded};
      for (const FusedPiece& piece : operation.pieces) {
        args.items.push_back({piece.in, piece.out, piece.rows, piece.row_bytes});
      }
      return MakeReducescatter(exchange, std::move(args));
    }
    case OpKind::kReduce:
      return MakeReduce(exchange, {operation.reduction, Segments(operation), operation.absent,
                                   operation.encoding, operation.root});
    case OpKind::kAllgather:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kAlltoall:
      if (operation.positions.empty()) return StartMovement(exchange, operation);
      return MakeOrdered(exchange, operation.positions, [&operation](Exchange& ordered) {
        return StartMovement(ordered, operation);
      });
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;
  }
  assert(false && "not a data operation");
  return nullptr;
}

}  // namespace horoscale
