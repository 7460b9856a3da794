#include "transport/hosts/hosts_transport.h"

#include <algorithm>
#include <utility>

#include "platform/deadline.h"
#include "transport/hosts/hosts_exchange.h"
#include "transport/set_hosts.h"

namespace horoscale {
namespace {

// Interval between checks of links that are being created.
constexpr double kLookSeconds = 0.01;

}  // namespace

Result<std::unique_ptr<Transport>> HostsTransport::Create(std::unique_ptr<ShmTransport> local,
                                                          std::unique_ptr<TcpTransport> remote,
                                                          std::vector<uint32_t> hosts) {
  HS_RETURN_IF_ERROR(local->WakeOn(remote->fd()));
  for (const int fd : local->EndDescriptors()) {
    HS_RETURN_IF_ERROR(remote->WatchEnd(fd, Poller::Interest::kReadOnce));
  }
  return std::unique_ptr<Transport>(
      new HostsTransport(std::move(local), std::move(remote), std::move(hosts)));
}

HostsTransport::HostsTransport(std::unique_ptr<ShmTransport> local,
                               std::unique_ptr<TcpTransport> remote, std::vector<uint32_t> hosts)
    : local_(std::move(local)),
      remote_(std::move(remote)),
      hosts_(std::move(hosts)),
      losses_(local_.get(), remote_.get(), hosts_) {}

HostsTransport::~HostsTransport() { remote_->CallOnEnd(nullptr); }

void HostsTransport::Send(int to_rank, const FrameHeader& header,
                          std::span<const std::byte> payload) {
  if (IsLocal(to_rank)) return local_->Send(to_rank, header, payload);
  remote_->Send(to_rank, header, payload);
}

bool HostsTransport::Poll(TransportSink& sink) {
  if (has_ends_.load(std::memory_order_relaxed) && has_ends_.exchange(false)) {
    local_->LookAtPeers();
  }
  return losses_.Poll(sink);
}

std::vector<uint32_t> HostsTransport::HostsOf(std::span<const int> ranks) const {
  return SetHosts(ranks, hosts_);
}

Result<std::unique_ptr<Exchange>> HostsTransport::Open(ChannelId channel,
                                                       std::span<const int> ranks) {
  std::vector<uint32_t> hosts = HostsOf(ranks);
  if (hosts.empty()) return local_->Open(channel, ranks);
  std::vector<int> near;
  std::vector<uint32_t> position;
  for (const int rank : ranks) {
    position.push_back(static_cast<uint32_t>(near.size()));
    if (IsLocal(rank)) near.push_back(rank);
  }
  auto local = local_->Open(channel, near);
  if (!local.ok()) return local.status();
  auto remote = remote_->Open(channel, ranks, [this](int rank) { return IsLocal(rank); });
  if (!remote.ok()) return remote.status();
  return std::unique_ptr<Exchange>(std::make_unique<HostsExchange>(
      local.TakeValue(), remote.TakeValue(), std::move(hosts), std::move(position)));
}

void HostsTransport::CallOnEnd(std::function<void()> look) {
  if (!look) return remote_->CallOnEnd(nullptr);
  remote_->CallOnEnd([this, look = std::move(look)] {
    has_ends_.store(true);
    look();
  });
}

std::vector<int> HostsTransport::AwaitLinks(double seconds) {
  NoSink nobody;  // loss notices are not delivered to it
  const Deadline deadline = Deadline::After(seconds);
  while (!remote_->Awaited().empty() && !deadline.Passed()) {
    Arm();
    if (!losses_.Poll(nobody)) Sleep(std::min(kLookSeconds, deadline.SecondsLeft()));
    Disarm();
  }
  std::vector<int> missed = remote_->Awaited();
  missed.insert(missed.end(), remote_->undelivered().begin(), remote_->undelivered().end());
  std::sort(missed.begin(), missed.end());
  return missed;
}

TransportCounters HostsTransport::counters() const {
  TransportCounters sum = local_->counters();
  const TransportCounters& far = remote_->counters();
  sum.control_frames_sent += far.control_frames_sent;
  sum.control_frames_received += far.control_frames_received;
  sum.control_bytes_sent += far.control_bytes_sent;
  sum.socket_frames_sent += far.socket_frames_sent;
  sum.data_bytes_sent += far.data_bytes_sent;
  sum.network_bytes_sent += far.network_bytes_sent;
  return sum;
}

void HostsTransport::Close(std::span<const std::byte> last_frame, double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  remote_->Close(last_frame, deadline);
  local_->Close(last_frame, deadline.SecondsLeft());
}

}  // namespace horoscale
