// ByteStream: a connected stream socket, unix or TCP, that never blocks without a deadline.
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

// What the messages of one connection are authenticated with, one key for each direction.
struct MessageKeys {
  MessageKey send;
  MessageKey receive;
};

class ByteStream {
 public:
  // `fd` must be non-blocking. `peer` is the other side as errors call it: "127.0.0.1:4711".
  ByteStream(UniqueFd fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {}

  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }

  // All bytes or an error: kTimeout, or kSystem if the connection broke or ended. After an error
  // the stream is of no use, because part of the bytes may have gone.
  Status SendAll(std::span<const std::byte> bytes, const Deadline& deadline);
  Status ReceiveAll(std::span<std::byte> bytes, const Deadline& deadline);

  // What goes without waiting, 0 if nothing does. The end of the stream is kSystem.
  Result<size_t> SendSome(std::span<const std::byte> bytes);
  Result<size_t> ReceiveSome(std::span<std::byte> bytes);
  // The same for several pieces, one behind the other; at most kMaxPieces.
  static constexpr size_t kMaxPieces = kMaxSocketPieces;
  Result<size_t> SendSome(std::span<const std::span<const std::byte>> pieces);
  Result<size_t> ReceiveSome(std::span<const std::span<std::byte>> pieces);

  // From now on everything passes through the layer, which is made for this stream's socket.
  void SetLayer(std::unique_ptr<StreamLayer> layer) { layer_ = std::move(layer); }
  bool has_layer() const { return layer_ != nullptr; }
  // Goes on with what the layer has to do before the first byte; true when that is over.
  Result<bool> Handshake() { return layer_ != nullptr ? layer_->Handshake() : Result<bool>(true); }
  // Waits until it is.
  Status FinishHandshake(const Deadline& deadline);
  // There may be something to receive although the socket isn't readable: whoever polls it has to
  // receive until this is false.
  bool HasPending() const { return layer_ != nullptr && layer_->HasPending(); }

  // Known once the peer has proved itself, where the messages on this stream are authenticated one
  // by one by those who send and receive them, and not by the layer.
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
