#include "platform/tcp_rate.h"

#include <linux/tcp.h>  // netinet/tcp.h has an older tcp_info, and both can't be included
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace horoscale {

double DeliveryRate(const ByteStream& stream) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(stream.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  constexpr size_t kEnd = offsetof(tcp_info, tcpi_delivery_rate) + sizeof(info.tcpi_delivery_rate);
  return length < kEnd ? 0 : static_cast<double>(info.tcpi_delivery_rate);
}

}  // namespace horoscale
