// StreamLayer: a layer between a ByteStream and its socket, such as TLS. It is transparent to the
// users of the stream, except that data may be buffered in the layer.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>

#include "base/status.h"

namespace horoscale {

class StreamLayer {
 public:
  virtual ~StreamLayer() = default;

  // Continues the handshake that precedes user data; returns true when it is complete. Send() and
  // Receive() do the same.
  virtual Result<bool> Handshake() { return true; }

  // Like ByteStream's SendSome(). Also returns 0 while accepted bytes have not all reached the
  // socket; the caller then passes the same bytes again, possibly followed by more.
  virtual Result<size_t> Send(std::span<const std::span<const std::byte>> pieces) = 0;
  // Like ByteStream's ReceiveSome().
  virtual Result<size_t> Receive(std::span<const std::span<std::byte>> pieces) = 0;

  // Whether the layer may have buffered data for Receive() although the socket is not readable.
  virtual bool HasPending() const = 0;

  // The poll events to wait for after Send() or Receive() returned 0.
  virtual short EventsToSend() const { return POLLOUT; }
  virtual short EventsToReceive() const { return POLLIN; }
};

}  // namespace horoscale
