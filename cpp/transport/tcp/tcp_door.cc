#include "transport/tcp/tcp_door.h"

#include <algorithm>
#include <cstdint>

namespace horoscale {
namespace {

void Add(TcpDoor& door, const std::string& address, uint16_t port) {
  door.places += "[" + address + "]:" + std::to_string(port) + "\n";
}

// On each of these alone.
Result<TcpDoor> OpenAt(const std::vector<std::string>& addresses) {
  TcpDoor door;
  Status last = Status::InvalidArgument("the selected network interfaces have no address");
  for (const std::string& address : addresses) {
    auto listener = TcpListener::Create(address, 0);
    if (listener.ok()) {
      Add(door, address, listener->port());
      door.listeners.push_back(listener.TakeValue());
    } else if (door.listeners.empty()) {
      last = listener.status();  // machines may lack IPv6
    }
  }
  if (door.listeners.empty()) return last;
  return door;
}

}  // namespace

Result<TcpDoor> TcpDoor::Open(const Options& options) {
  std::vector<std::string> addresses;
  const bool everywhere = !options.loopback_only && options.interfaces.empty();
  if (!options.loopback_only) {
    const auto found = MachineAddresses(options.interfaces);
    if (!found.ok()) return found.status();
    addresses = *found;
  }
  if (everywhere || options.loopback_only) {
    // Last, for jobs that simulate several hosts on one machine.
    addresses.insert(addresses.end(), {"127.0.0.1", "::1"});
    const auto first = std::find(addresses.begin(), addresses.end(), options.first_address);
    if (first != addresses.end()) std::rotate(addresses.begin(), first, first + 1);
  }
  if (!everywhere) return OpenAt(addresses);
  auto all = TcpListener::Create("::", 0);
  if (!all.ok()) all = TcpListener::Create("0.0.0.0", 0);  // machines may lack IPv6
  if (!all.ok()) return all.status();
  TcpDoor door;
  for (const std::string& address : addresses) Add(door, address, all->port());
  door.listeners.push_back(all.TakeValue());
  return door;
}

}  // namespace horoscale
