#include "rendezvous/store_client.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/rank_list.h"
#include "platform/tcp_socket.h"
#include "platform/wait.h"
#include "rendezvous/auth.h"
#include "rendezvous/sealed_records.h"
#include "rendezvous/store_protocol.h"
#include "rendezvous/store_server.h"

namespace horoscale {
namespace {

// Additional time for a reply beyond the requested wait, for a busy server or a slow network.
constexpr double kReplySeconds = 30;
constexpr double kRetrySeconds = 0.02;
// Limit per address, because one address may drop packets silently.
constexpr double kAddressSeconds = 3;

// Rounded up and limited.
uint32_t Milliseconds(double seconds) {
  constexpr double kMost = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(std::clamp(std::ceil(seconds * 1e3), 0.0, kMost));
}

Status Authenticate(ByteStream& stream, std::string_view secret, bool encrypt,
                    const Deadline& deadline) {
  HS_RETURN_IF_ERROR(
      AuthenticateToServer(stream, secret, kStoreAuthContext, BetweenHosts(encrypt), deadline));
  UseSealedRecords(stream);
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::Connect(const std::string& host, uint16_t port,
                                                          std::string_view secret, double seconds,
                                                          bool encrypt) {
  const Deadline deadline = Deadline::After(seconds);
  while (true) {
    Result<ByteStream> stream = ConnectTcp(host, port, deadline, WhenRefused::kRetry);
    if (!stream.ok()) return stream.status();
    const Deadline own = Deadline::After(std::min(kHandshakeSeconds, deadline.SecondsLeft()));
    const Status status = Authenticate(*stream, secret, encrypt, own);
    if (status.ok()) return std::unique_ptr<StoreClient>(new StoreClient(stream.TakeValue()));
    if (!MayBeLetInLater(status) || deadline.Passed()) return status;
    const timespec pause = ToTimespec(std::min(kRetrySeconds, deadline.SecondsLeft()));
    nanosleep(&pause, nullptr);
  }
}

Result<std::unique_ptr<StoreClient>> StoreClient::ConnectToAny(std::span<const std::string> hosts,
                                                               uint16_t port,
                                                               std::string_view secret,
                                                               double seconds, bool encrypt) {
  const Deadline deadline = Deadline::After(seconds);
  while (true) {  // a crowded server drops connections: see Connect()
    std::string tried;
    for (const std::string& host : hosts) {
      const Deadline own = Deadline::After(std::min(kAddressSeconds, deadline.SecondsLeft()));
      Result<ByteStream> stream = ConnectTcp(host, port, own);
      Status status = stream.status();
      if (status.ok()) status = Authenticate(*stream, secret, encrypt, own);
      if (status.ok()) return std::unique_ptr<StoreClient>(new StoreClient(stream.TakeValue()));
      tried += (tried.empty() ? "" : "; ") + status.message();
    }
    if (deadline.Passed()) return Status(StatusCode::kSystem, tried);
    const timespec pause = ToTimespec(std::min(kRetrySeconds, deadline.SecondsLeft()));
    nanosleep(&pause, nullptr);
  }
}

Status StoreClient::Answer::ToStatus() const {
  if (code == StatusCode::kOk) return {};
  return {code, std::string(reinterpret_cast<const char*>(payload.data()), payload.size())};
}

Status StoreClient::Set(std::string_view key, std::span<const std::byte> value) {
  HS_RETURN_IF_ERROR(CheckStoreKey(key));
  HS_RETURN_IF_ERROR(CheckStoreValue(key, value));
  const auto answer = Call(EncodeSet(key, value), 0);
  return answer.ok() ? answer->ToStatus() : answer.status();
}

Result<std::vector<std::byte>> StoreClient::Get(std::string_view key, double seconds) {
  HS_RETURN_IF_ERROR(CheckStoreKey(key));
  const uint32_t wait_ms = Milliseconds(seconds);
  auto answer = Call(EncodeGet(key, wait_ms), wait_ms * 1e-3);
  if (!answer.ok()) return answer.status();
  if (answer->code == StatusCode::kOk) return std::move(answer->payload);
  if (answer->code == StatusCode::kTimeout) {
    return Status::Timeout("no rank set the store's key '" + std::string(key) + "' within " +
                           std::to_string(seconds) + " s");
  }
  return answer->ToStatus();
}

Result<Gathered> StoreClient::Gather(const GatherRequest& request, double seconds) {
  HS_RETURN_IF_ERROR(CheckGather(request));
  const uint32_t wait_ms = Milliseconds(seconds);
  const auto answer = Call(EncodeGather(request, wait_ms), wait_ms * 1e-3);
  if (!answer.ok()) return answer.status();
  if (answer->code == StatusCode::kOk) return DecodeGathered(answer->payload, request.count);
  if (answer->code != StatusCode::kTimeout) return answer->ToStatus();
  auto missing = DecodePlaces(answer->payload, request.count);
  if (!missing.ok()) return missing.status();
  const std::string text = RankList(*missing) + " of " + std::to_string(request.count) +
                           " did not reach '" + std::string(request.key) + "' in time";
  return Status(StatusCode::kTimeout, text, {missing.TakeValue(), -1, ""});
}

Result<StoreClient::Answer> StoreClient::Call(std::span<const std::byte> request, double seconds) {
  const std::lock_guard lock(mutex_);
  HS_RETURN_IF_ERROR(broken_);
  const double left = std::min(seconds + kReplySeconds, end_by_.SecondsLeft());
  const Deadline deadline = Deadline::After(left);
  // Not kTimeout, which would mean that the key is not set; an unresponsive server may have it.
  const auto fail = [this](const Status& why) {
    const bool is_silent = why.code() == StatusCode::kTimeout;
    broken_ =
        Status(is_silent ? StatusCode::kSystem : why.code(), "the job's store: " + why.message());
    return broken_;
  };
  if (const Status sent = stream_.SendAll(request, deadline); !sent.ok()) return fail(sent);
  const Result<std::vector<std::byte>> body = ReceiveBody(deadline);
  if (!body.ok()) return fail(body.status());
  const Result<StoreReply> reply = DecodeStoreReply(*body);
  if (!reply.ok()) return fail(reply.status());
  return Answer{reply->code, {reply->payload.begin(), reply->payload.end()}};
}

Result<std::vector<std::byte>> StoreClient::ReceiveBody(const Deadline& deadline) {
  std::array<std::byte, kStoreHeaderBytes> header;
  HS_RETURN_IF_ERROR(stream_.ReceiveAll(header, deadline));
  const Result<size_t> bytes = DecodeStoreHeader(header, kStoreMaxReplyBytes);
  if (!bytes.ok()) return bytes.status();
  std::vector<std::byte> body(*bytes);
  HS_RETURN_IF_ERROR(stream_.ReceiveAll(body, deadline));
  return body;
}

}  // namespace horoscale
