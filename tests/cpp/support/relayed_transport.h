// A transport that forwards to another one: a base class for tests that override some functions.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace horoscale::testing {

class RelayedTransport : public Transport {
 public:
  explicit RelayedTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::vector<uint32_t> HostsOf(std::span<const int> ranks) const override {
    return inner_->HostsOf(ranks);
  }
  void Send(int to, const FrameHeader& header, std::span<const std::byte> payload) override {
    inner_->Send(to, header, payload);
  }
  bool Poll(TransportSink& sink) override { return inner_->Poll(sink); }
  bool HasUnsent() const override { return inner_->HasUnsent(); }
  Result<std::unique_ptr<Exchange>> Open(ChannelId channel, std::span<const int> ranks) override {
    return inner_->Open(channel, ranks);
  }
  void Forget(ChannelId channel) override { inner_->Forget(channel); }
  void Arm() override { inner_->Arm(); }
  void Sleep(double seconds) override { inner_->Sleep(seconds); }
  void Disarm() override { inner_->Disarm(); }
  void Wake() override { inner_->Wake(); }
  Result<std::byte*> AllocateShared(size_t bytes) override { return inner_->AllocateShared(bytes); }
  void FreeShared(std::byte* memory) override { inner_->FreeShared(memory); }
  int64_t SharedOffset(const std::byte* memory, size_t bytes) const override {
    return inner_->SharedOffset(memory, bytes);
  }
  std::byte* SharedAddress(int rank, int64_t offset, size_t bytes) const override {
    return inner_->SharedAddress(rank, offset, bytes);
  }
  bool ReadMemory(int rank, uint64_t address, std::span<std::byte> into) override {
    return inner_->ReadMemory(rank, address, into);
  }
  StagingAreas* StagingWith(int rank) override { return inner_->StagingWith(rank); }
  void Ring(int rank) override { inner_->Ring(rank); }
  void GiveBackIdle(double now) override { inner_->GiveBackIdle(now); }
  void CallOnEnd(std::function<void()> look) override { inner_->CallOnEnd(std::move(look)); }
  std::vector<int> AwaitLinks(double seconds) override { return inner_->AwaitLinks(seconds); }
  TransportCounters counters() const override { return inner_->counters(); }
  void Close(std::span<const std::byte> last_frame, double seconds) override {
    inner_->Close(last_frame, seconds);
  }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace horoscale::testing
