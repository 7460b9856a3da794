#include "platform/byte_stream.h"

#include <poll.h>

#include "platform/wait.h"

namespace horoscale {

Result<size_t> ByteStream::SendSome(std::span<const std::byte> bytes) {
  return SendSome(std::span(&bytes, 1));
}

Result<size_t> ByteStream::ReceiveSome(std::span<std::byte> bytes) {
  return ReceiveSome(std::span(&bytes, 1));
}

Result<size_t> ByteStream::SendSome(std::span<const std::span<const std::byte>> pieces) {
  return layer_ != nullptr ? layer_->Send(pieces) : RawSend(fd_.get(), peer_, pieces);
}

Result<size_t> ByteStream::ReceiveSome(std::span<const std::span<std::byte>> pieces) {
  return layer_ != nullptr ? layer_->Receive(pieces) : RawReceive(fd_.get(), peer_, pieces);
}

Status ByteStream::Wait(short events, const Deadline& deadline, const char* doing) {
  Status waited = WaitForDescriptor(fd_.get(), events, deadline);
  if (waited.code() == StatusCode::kTimeout) {
    return Status::Timeout(std::string("timed out ") + doing + " " + peer_);
  }
  return waited;
}

Status ByteStream::SendAll(std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    Result<size_t> sent = SendSome(bytes);
    if (!sent.ok()) return sent.status();
    bytes = bytes.subspan(*sent);
    if (*sent > 0) continue;
    const short events = layer_ != nullptr ? layer_->EventsToSend() : POLLOUT;
    HS_RETURN_IF_ERROR(Wait(events, deadline, "sending to"));
  }
  return Status::Ok();
}

Status ByteStream::ReceiveAll(std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    Result<size_t> got = ReceiveSome(bytes);
    if (!got.ok()) return got.status();
    bytes = bytes.subspan(*got);
    if (*got > 0) continue;
    const short events = layer_ != nullptr ? layer_->EventsToReceive() : POLLIN;
    HS_RETURN_IF_ERROR(Wait(events, deadline, "waiting for"));
  }
  return Status::Ok();
}

Status ByteStream::FinishHandshake(const Deadline& deadline) {
  while (true) {
    const Result<bool> done = Handshake();
    if (!done.ok()) return done.status();
    if (*done) return Status::Ok();
    HS_RETURN_IF_ERROR(Wait(layer_->EventsToReceive(), deadline, "waiting for"));
  }
}

}  // namespace horoscale
