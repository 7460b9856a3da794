#include "runtime/neighbours.h"

#include <algorithm>
#include <utility>

#include "transport/shm/link.h"

namespace horoscale {
namespace {

// An existing socket responds immediately, because the kernel does.
constexpr double kProbeSeconds = 1;

Status Reach(const std::string& socket_name, const Deadline& deadline) {
  const Result<ByteStream> socket = ConnectUnix(socket_name, deadline);
  return socket.ok() ? CheckSameUser(*socket) : socket.status();
}

}  // namespace

Result<Neighbours> Neighbours::Create() {
  Result<UnixListener> listener = UnixListener::Create();
  if (!listener.ok()) return listener.status();
  return Neighbours(listener.TakeValue());
}

int Neighbours::FindLowest(const std::map<int, std::string>& cards, int rank, std::string_view host,
                           const Deadline& deadline, std::string* why_not) {
  std::string reason;
  for (const auto& [other, card] : cards) {
    if (other >= rank) break;
    const double seconds = std::min(kProbeSeconds, deadline.SecondsLeft());
    const Status reached = Reach(card, Deadline::After(seconds));
    // A full backlog also means that the socket exists.
    if (reached.ok() || reached.code() == StatusCode::kTimeout) return other;
    if (reason.empty()) {
      reason = "rank " + std::to_string(other) + " and rank " + std::to_string(rank) +
               " report the same host name, \"" + std::string(host) +
               "\", but can't share memory, so they are treated as being on different hosts (" +
               reached.message() + ")";
    }
  }
  *why_not = std::move(reason);
  return rank;
}

Result<std::vector<std::string>> HostsOf(std::span<const int> lowest) {
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < lowest.size(); ++rank) {
    const auto first = static_cast<size_t>(lowest[rank]);
    if (lowest[rank] < 0 || first > rank || static_cast<size_t>(lowest[first]) != first) {
      return Status::Protocol("rank " + std::to_string(rank) + " shares memory with rank " +
                              std::to_string(lowest[rank]) +
                              ", which is not the lowest rank of that host");
    }
    hosts.push_back("the host of rank " + std::to_string(first));
  }
  return hosts;
}

}  // namespace horoscale
