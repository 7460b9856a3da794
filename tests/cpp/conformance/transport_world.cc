#include "conformance/transport_world.h"

#include <gtest/gtest.h>

#include <utility>

#include "transport/inproc/inproc_fabric.h"

namespace horoscale {
namespace {

class InprocWorld : public TransportWorld {
 public:
  InprocWorld(int size, const MemoryOptions& options)
      : fabric_(InprocFabric::Create(size, options).TakeValue()) {
    for (int rank = 0; rank < size; ++rank) endpoints_.push_back(fabric_->Endpoint(rank));
  }
  Transport& At(int rank) override { return *endpoints_.at(static_cast<size_t>(rank)); }
  void Lose(int rank) override { fabric_->Kill(rank); }

 private:
  std::shared_ptr<InprocFabric> fabric_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
};

template <typename World>
TransportKind Kind(std::string name) {
  return {std::move(name), [](int size, const MemoryOptions& options) {
            return std::make_unique<World>(size, options);
          }};
}

}  // namespace

std::vector<TransportKind> AllTransportKinds() { return {Kind<InprocWorld>("inproc")}; }

}  // namespace horoscale
