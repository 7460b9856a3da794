// StagingAreas: the areas through which one rank sends large messages to other ranks of its host
// (transport/memory/staging.h), and its receives through their areas.
//
// Only the engine's owner calls it. An area is allocated for the first message to a peer and never
// freed, because a peer that has not yet learned of a failure may still write its counters. The
// pages of idle areas' cells are released; readers use the content of cells only while their
// message is served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "transport/memory/staging.h"
#include "transport/transport.h"

namespace horoscale {

class StagingAreas {
 public:
  // The transport and its memory must outlive it.
  explicit StagingAreas(Transport& transport) : transport_(transport) {}

  // Sender: the shared offset of the area for messages to the peer; -1 if there is none.
  int64_t OffsetFor(int peer);
  // The receiver has begun this use and ended all earlier ones.
  void Serve(int peer, uint32_t use, std::span<const std::byte> message);
  // The message must not be read here any more.
  void Stop(int peer, uint32_t use);
  // Copies part of the served message; returns whether it copied anything.
  bool Step(int peer);

  // Releases the memory of areas that have been idle for kIdleSeconds; called periodically.
  static constexpr double kIdleSeconds = 5;
  void GiveBackIdle(double now);

  // Receiver: a message through the area at the peer's offset. The sender must be told its use. At
  // most one per peer exists at a time; null if there is another one, or if the offset is invalid.
  class Incoming;
  std::unique_ptr<Incoming> Receive(int peer, int64_t offset, std::span<std::byte> into);

 private:
  struct Outgoing {
    int64_t offset = -1;
    std::byte* area = nullptr;
    std::optional<StagingWriter> writer;
    bool is_used = false;              // since the last check for idle areas
    std::optional<double> idle_since;  // null: nothing to release
  };
  struct Receiving {
    uint32_t last_use = 0;
    bool is_under_way = false;
  };

  Transport& transport_;
  std::map<int, Outgoing> outgoing_;
  std::map<int, Receiving> receiving_;
};

class StagingAreas::Incoming {
 public:
  Incoming(Receiving& receiving, std::byte* area, std::span<std::byte> into)
      : reader(area, ++receiving.last_use, into), receiving_(receiving) {
    receiving_.is_under_way = true;
  }
  ~Incoming() { receiving_.is_under_way = false; }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  StagingReader reader;

 private:
  Receiving& receiving_;
};

}  // namespace horoscale
