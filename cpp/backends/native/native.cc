#include "backends/native/native.h"

#include <cassert>
#include <utility>

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

std::vector<AllgatherItem> Items(const FusedOperation& operation) {
  std::vector<AllgatherItem> items;
  items.reserve(operation.pieces.size());
  for (const FusedPiece& piece : operation.pieces) {
    items.push_back({piece.in, piece.rows, piece.row_bytes, {piece.out, piece.out_rows}});
  }
  return items;
}

}  // namespace

std::unique_ptr<Collective> StartNative(Exchange& exchange, FusedOperation& operation) {
  switch (operation.kind) {
    case OpKind::kAllreduce:
      return MakeAllreduce(
          exchange, {operation.reduction, Segments(operation), operation.absent, operation.wire});
    case OpKind::kBroadcast:
      return MakeBroadcast(exchange, {operation.root, Segments(operation), operation.absent});
    case OpKind::kReducescatter: {
      ReducescatterArgs args{operation.reduction, {}, operation.wire, operation.splits};
      for (const FusedPiece& piece : operation.pieces) {
        args.items.push_back({piece.in, piece.out, piece.rows, piece.row_bytes});
      }
      return MakeReducescatter(exchange, std::move(args));
    }
    case OpKind::kReduce:
      return MakeReduce(exchange, {operation.reduction, operation.root, Segments(operation),
                                   operation.absent, operation.wire});
    case OpKind::kAllgather:
      return MakeAllgather(exchange, {Items(operation), &operation.results});
    case OpKind::kGather:
      return MakeGather(exchange, {operation.root, Items(operation), &operation.results});
    case OpKind::kScatter: {
      operation.results.resize(1);
      const FusedPiece& piece = operation.pieces.front();
      return MakeScatter(exchange, {operation.root, piece.row_bytes, piece.in, operation.splits,
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
