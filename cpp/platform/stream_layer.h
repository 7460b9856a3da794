// StreamLayer: what the bytes of a ByteStream pass through on their way to the socket and from it,
// such as TLS. The users of the stream don't notice, except that bytes may wait in the layer.
#pragma once

#include <poll.h>

#include <cstddef>
#include <span>

#include "base/status.h"

namespace horoscale {

class StreamLayer {
 public:
  virtual ~StreamLayer() = default;

  // What has to pass before the first byte of a user can; true when it is over. Send() and
  // Receive() do it as well.
  virtual Result<bool> Handshake() { return true; }

  // As ByteStream's SendSome(): 0 also while bytes that were taken have not all reached the socket.
  // The caller then offers the same bytes again, with or without others behind them.
  virtual Result<size_t> Send(std::span<const std::span<const std::byte>> pieces) = 0;
  // As ByteStream's ReceiveSome().
  virtual Result<size_t> Receive(std::span<const std::span<std::byte>> pieces) = 0;

  // The layer may have bytes for Receive() which the socket doesn't show any more.
  virtual bool HasPending() const = 0;

  // What to wait for at the socket after 0: these or POLLOUT, POLLIN.
  virtual short EventsToSend() const { return POLLOUT; }
  virtual short EventsToReceive() const { return POLLIN; }
};

}  // namespace horoscale
