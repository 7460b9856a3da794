#include "rendezvous/sealed_records.h"

#include <algorithm>
#include <utility>

#include "platform/raw_socket.h"

namespace horoscale {
namespace {

void Append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

void UseSealedRecords(ByteStream& stream) {
  if (!stream.message_keys()) return;  // TLS does it
  stream.SetLayer(
      std::make_unique<SealedRecords>(stream.fd(), stream.peer(), *stream.message_keys()));
}

void SealedRecords::MakeRecord(std::span<const std::span<const std::byte>> pieces) {
  std::vector<std::byte> payload;
  for (const std::span<const std::byte> piece : pieces) {
    Append(payload, piece.first(std::min(piece.size(), kMaxRecordBytes - payload.size())));
  }
  taken_ = payload.size();
  gone_ = 0;
  record_.clear();
  if (taken_ == 0) return;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    record_.push_back(static_cast<std::byte>(taken_ >> (8 * i)));
  }
  Append(record_, seal_.Next(record_));
  Append(record_, payload);
  Append(record_, seal_.Next(payload));
}

Result<size_t> SealedRecords::Send(std::span<const std::span<const std::byte>> pieces) {
  if (gone_ == record_.size()) MakeRecord(pieces);
  while (gone_ < record_.size()) {
    const std::span<const std::byte> rest = std::span(record_).subspan(gone_);
    const Result<size_t> sent = RawSend(fd_, peer_, std::span(&rest, 1));
    if (!sent.ok()) return sent.status();
    if (*sent == 0) return size_t{0};
    gone_ += *sent;
  }
  return std::exchange(taken_, 0);
}

Result<size_t> SealedRecords::Receive(std::span<const std::span<std::byte>> pieces) {
  HS_RETURN_IF_ERROR(broken_);
  size_t given = 0;
  for (std::span<std::byte> piece : pieces) {
    while (!piece.empty()) {
      if (opened_ == payload_.size()) {
        const Result<bool> there = ReceiveRecord();
        if (!there.ok() && given == 0) return there.status();
        if (!there.ok() || !*there) return given;  // a failure is returned by the next call
      }
      const size_t part = std::min(piece.size(), payload_.size() - opened_);
      std::copy_n(payload_.begin() + static_cast<ptrdiff_t>(opened_), part, piece.begin());
      opened_ += part;
      given += part;
      piece = piece.subspan(part);
    }
  }
  return given;
}

Result<bool> SealedRecords::ReceiveRecord() {
  while (true) {
    const std::span<std::byte> missing = std::span(input_).subspan(received_);
    const Result<size_t> got = RawReceive(fd_, peer_, std::span(&missing, 1));
    if (!got.ok()) return got.status();
    if (*got == 0) return false;
    received_ += *got;
    if (received_ < input_.size()) continue;
    received_ = 0;
    const bool complete = in_payload_;
    broken_ = complete ? OpenPayload() : OpenHeader();
    HS_RETURN_IF_ERROR(broken_);
    if (complete) return true;
  }
}

Status SealedRecords::OpenHeader() {
  const std::span<const std::byte> length = std::span(input_).first(kLengthBytes);
  HS_RETURN_IF_ERROR(
      opener_.Check(length, std::span(input_).subspan(kLengthBytes).first<Seal::kTagBytes>()));
  size_t bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes |= std::to_integer<size_t>(length[i]) << (8 * i);
  }
  if (bytes == 0 || bytes > kMaxRecordBytes) {
    return Status::Protocol("invalid record length: " + std::to_string(bytes) + " bytes");
  }
  input_.resize(bytes + Seal::kTagBytes);
  in_payload_ = true;
  return Status::Ok();
}

Status SealedRecords::OpenPayload() {
  const size_t bytes = input_.size() - Seal::kTagBytes;
  HS_RETURN_IF_ERROR(opener_.Check(std::span(input_).first(bytes),
                                   std::span(input_).subspan(bytes).first<Seal::kTagBytes>()));
  payload_ = std::move(input_);
  payload_.resize(bytes);
  opened_ = 0;
  input_ = std::vector<std::byte>(kHeaderBytes);
  in_payload_ = false;
  return Status::Ok();
}

}  // namespace horoscale
