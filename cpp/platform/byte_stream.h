// ByteStream: a connected stream socket (Unix or TCP) that never blocks without a deadline.
//
// Not thread-safe. Writing to a closed peer is an error, never SIGPIPE.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "platform/deadline.h"
#include "platform/raw_socket.h"
#include "platform/stream_layer.h"
#include "platform/unique_fd.h"

namespace horoscale {

using MessageKey = std::array<std::byte, 16>;

// The keys that authenticate the messages of one connection, one per direction.
struct MessageKeys {
  MessageKey send;
  MessageKey receive;
};

class ByteStream {
 public:
  // `fd` must be non-blocking. `peer` names the other side in errors, such as "127.0.0.1:4711".
  ByteStream(UniqueFd fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {}

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  // Sends all bytes. kTimeout; kSystem if the connection broke or was closed. After an error the
  // stream is unusable, because part of the bytes may have been sent.
  Status SendAll(std::span<const std::byte> bytes, const Deadline& deadline);
  Status ReceiveAll(std::span<std::byte> bytes, const Deadline& deadline);

  // Sends as many bytes as possible without waiting and returns their number, possibly 0. The end
  // of the stream is kSystem.
  Result<size_t> SendSome(std::span<const std::byte> bytes);
  Result<size_t> ReceiveSome(std::span<std::byte> bytes);
  // The same for several consecutive pieces, at most kMaxPieces.
  static constexpr size_t kMaxPieces = kMaxSocketPieces;
  Result<size_t> SendSome(std::span<const std::span<const std::byte>> pieces);
  Result<size_t> ReceiveSome(std::span<const std::span<std::byte>> pieces);

  // Makes all further data pass through the layer, which must have been created for this stream's
  // socket.
  void SetLayer(std::unique_ptr<StreamLayer> layer) { layer_ = std::move(layer); }
  bool has_layer() const { return layer_ != nullptr; }
  // Continues the layer's handshake; returns true when it is complete.
  Result<bool> Handshake() { return layer_ != nullptr ? layer_->Handshake() : Result<bool>(true); }
  // Waits until the handshake is complete.
  Status FinishHandshake(const Deadline& deadline);
  // Whether data may be available although the socket is not readable. Callers that poll the socket
  // must receive until this is false.
  bool HasPending() const { return layer_ != nullptr && layer_->HasPending(); }

  // Set after the handshake, if the messages on this stream are authenticated individually by their
  // senders and receivers instead of by the layer.
  const std::optional<MessageKeys>& message_keys() const { return message_keys_; }
  void set_message_keys(const MessageKeys& keys) { message_keys_ = keys; }

 private:
  Status Wait(short events, const Deadline& deadline, const char* doing);

  UniqueFd fd_;
  std::string peer_;
  std::unique_ptr<StreamLayer> layer_;
  std::optional<MessageKeys> message_keys_;
};

}  // namespace horoscale
