// Mailboxes connect the ranks of one of the double's communicators: a ring of bytes for each
// ordered pair of ranks, in a file that all of them map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nccl_double {

// Bytes to or from a peer. Transfers of one peer and direction run one after the other.
struct Transfer {
  int peer = 0;
  const char* out = nullptr;  // to send; null: to receive
  char* in = nullptr;
  size_t bytes = 0;
};

class Mailboxes {
 public:
  static std::unique_ptr<Mailboxes> Open(const std::string& path, int size, int rank);
  ~Mailboxes();

  // Whether all ranks have opened it; its file is unlinked by then.
  bool AllJoined() const;
  void Leave();  // together: see AllLeft()
  bool AllLeft() const;

  // Moves all bytes; false if `stopped` returned true first.
  bool Run(std::vector<Transfer> transfers, const std::function<bool()>& stopped);

 private:
  static constexpr size_t kRingBytes = size_t{64} << 10;
  struct Ring {
    std::atomic<uint64_t> written;
    std::atomic<uint64_t> read;
    char bytes[kRingBytes];
  };
  struct Header {
    std::atomic<int> joined;
    std::atomic<int> left;
  };

  Mailboxes() = default;
  Ring& RingOf(int from, int to) const;
  bool Move(Transfer& transfer);

  std::string path_;
  int size_ = 0;
  int rank_ = 0;
  size_t mapped_ = 0;
  char* memory_ = nullptr;
};

}  // namespace nccl_double
