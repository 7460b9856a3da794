#include "runtime/neighbours.h"

#include <algorithm>
#include <utility>

#include "transport/shm/link.h"

namespace horoscale {
namespace {

// A card is the name of the rank's socket, a newline, and the host's name.
std::string SocketOf(const std::string& card) { return card.substr(0, card.find('\n')); }
std::string HostOf(const std::string& card) { return card.substr(card.find('\n') + 1); }

// A socket that is there answers at once: the kernel does.
constexpr double kProbeSeconds = 1;

Status Reach(const std::string& socket_name, const Deadline& deadline) {
  const Result<ByteStream> socket = ConnectUnix(socket_name, deadline);
  return socket.ok() ? CheckSameUser(*socket) : socket.status();
}

}  // namespace

Result<Neighbours> Neighbours::Create(std::string_view host) {
  Result<UnixListener> listener = UnixListener::Create();
  if (!listener.ok()) return listener.status();
  std::string card = listener->name() + "\n" + std::string(host);
  return Neighbours(listener.TakeValue(), std::move(card));
}

int Neighbours::FindLowest(std::span<const std::string> cards, int rank, const Deadline& deadline,
                           std::string* why_not) {
  const std::string host = HostOf(cards[static_cast<size_t>(rank)]);
  std::string reason;
  for (int other = 0; other < rank; ++other) {
    const std::string& card = cards[static_cast<size_t>(other)];
    if (HostOf(card) != host) continue;
    const double seconds = std::min(kProbeSeconds, deadline.SecondsLeft());
    const Status reached = Reach(SocketOf(card), Deadline::After(seconds));
    // It is there also if so many wait at its socket that there is no room for one more.
    if (reached.ok() || reached.code() == StatusCode::kTimeout) return other;
    if (reason.empty()) {
      reason = "rank " + std::to_string(other) + " and rank " + std::to_string(rank) +
               " give their hosts the same name, \"" + host +
               "\", but can't share memory: they are treated as two hosts (" + reached.message() +
               ")";
    }
  }
  *why_not = std::move(reason);
  return rank;
}

Result<std::vector<std::string>> HostsOf(std::span<const std::string> cards,
                                         std::span<const int> lowest) {
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < lowest.size(); ++rank) {
    const auto first = static_cast<size_t>(lowest[rank]);
    if (lowest[rank] < 0 || first > rank || static_cast<size_t>(lowest[first]) != first) {
      return Status::Protocol("rank " + std::to_string(rank) + " shares memory with rank " +
                              std::to_string(lowest[rank]) + ", which is not the lowest to do so");
    }
    hosts.push_back(cards[first]);
  }
  return hosts;
}

}  // namespace horoscale
