// UniqueFd: owns a file descriptor. Every descriptor of ours is close-on-exec from birth; whoever
// creates one asks for that in the same call.
#pragma once

#include <unistd.h>

#include <utility>

namespace horoscale {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.Release();
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

  void Reset() {
    // Not repeated on EINTR: Linux has freed the number by then, and another thread may own it.
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace horoscale
