#include "nccl_double/mailboxes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

namespace nccl_double {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr std::chrono::microseconds kPause(20);

}  // namespace

std::unique_ptr<Mailboxes> Mailboxes::Open(const std::string& path, int size, int rank) {
  const auto ranks = static_cast<size_t>(size);
  std::unique_ptr<Mailboxes> boxes(new Mailboxes);
  boxes->path_ = path;
  boxes->size_ = size;
  boxes->rank_ = rank;
  boxes->mapped_ = kHeaderBytes + ranks * ranks * sizeof(Ring);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  const bool sized = ftruncate(file, static_cast<off_t>(boxes->mapped_)) == 0;
  void* const memory =
      sized ? mmap(nullptr, boxes->mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
            : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  boxes->memory_ = static_cast<char*>(memory);
  auto* const header = reinterpret_cast<Header*>(memory);
  if (header->joined.fetch_add(1) + 1 == size) unlink(path.c_str());
  return boxes;
}

Mailboxes::~Mailboxes() {
  if (memory_ == nullptr) return;
  if (!AllJoined()) unlink(path_.c_str());
  munmap(memory_, mapped_);
}

bool Mailboxes::AllJoined() const {
  return reinterpret_cast<const Header*>(memory_)->joined.load() == size_;
}

void Mailboxes::Leave() { reinterpret_cast<Header*>(memory_)->left.fetch_add(1); }

bool Mailboxes::AllLeft() const {
  return reinterpret_cast<const Header*>(memory_)->left.load() == size_;
}

Mailboxes::Ring& Mailboxes::RingOf(int from, int to) const {
  const auto index = static_cast<size_t>(from * size_ + to);
  return *reinterpret_cast<Ring*>(memory_ + kHeaderBytes + index * sizeof(Ring));
}

// As many bytes as the ring holds or has room for, up to its end.
bool Mailboxes::Move(Transfer& transfer) {
  const bool sends = transfer.out != nullptr;
  Ring& ring = sends ? RingOf(rank_, transfer.peer) : RingOf(transfer.peer, rank_);
  const uint64_t written = ring.written.load();
  const uint64_t read = ring.read.load();
  const uint64_t at = (sends ? written : read) % kRingBytes;
  const uint64_t there = sends ? kRingBytes - (written - read) : written - read;
  const size_t bytes =
      std::min({transfer.bytes, static_cast<size_t>(there), static_cast<size_t>(kRingBytes - at)});
  if (bytes == 0) return false;
  if (sends) {
    std::memcpy(ring.bytes + at, transfer.out, bytes);
    transfer.out += bytes;
    ring.written.store(written + bytes);
  } else {
    std::memcpy(transfer.in, ring.bytes + at, bytes);
    transfer.in += bytes;
    ring.read.store(read + bytes);
  }
  transfer.bytes -= bytes;
  return true;
}

bool Mailboxes::Run(std::vector<Transfer> transfers, const std::function<bool()>& stopped) {
  for (;;) {
    std::set<std::pair<int, bool>> busy;
    bool moved = false;
    for (Transfer& transfer : transfers) {
      if (transfer.bytes == 0) continue;
      if (!busy.insert({transfer.peer, transfer.out != nullptr}).second) continue;
      moved |= Move(transfer);
    }
    if (busy.empty()) return true;
    if (stopped()) return false;
    if (!moved) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace nccl_double
