// StagingAreas: the areas of one rank through which it passes large messages to the others of its
// host (transport/memory/staging.h), and the messages that pass through theirs to it.
//
// Only the engine's owner calls it. An area is made for the first message to a peer and kept until
// the end: a peer that hasn't heard of a failure yet may still write its counters. The pages of its
// cells are given back when nothing has gone through them for a while: what a reader finds there
// counts only while its message is served.
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
  // The transport outlives it, and so does the memory that it gives.
  explicit StagingAreas(Transport& transport) : transport_(transport) {}

  // Sender. The shared offset of the area for messages to the peer; -1 if it gets none.
  int64_t OffsetFor(int peer);
  // The receiver has begun this use; it is done with any before.
  void Serve(int peer, uint32_t use, std::span<const std::byte> message);
  // The message isn't read here any more.
  void Stop(int peer, uint32_t use);
  // Copies some of what is served; whether any.
  bool Step(int peer);

  // Of areas that were idle for so many seconds the memory is given back; to be called now and
  // then.
  static constexpr double kIdleSeconds = 5;
  void GiveBackIdle(double now);

  // Receiver: a message that comes through the area at the peer's offset. Its sender is to be told
  // of its use. One at a time of a peer, while the result lives; null for others, and where there
  // can be no area.
  class Incoming;
  std::unique_ptr<Incoming> Receive(int peer, int64_t offset, std::span<std::byte> into);

 private:
  struct Outgoing {
    int64_t offset = -1;
    std::byte* area = nullptr;
    std::optional<StagingWriter> writer;
    bool is_used = false;              // since the last look for idle ones
    std::optional<double> idle_since;  // null: there is nothing to give back
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
