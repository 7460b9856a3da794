// CapturedLog: captures standard error during its lifetime, so that tests can wait for messages.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <string>
#include <string_view>

#include "platform/unique_fd.h"
#include "platform/wait.h"

namespace horoscale {

class CapturedLog {
 public:
  CapturedLog() : stderr_(dup(STDERR_FILENO)) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) abort();
    pipe_ = UniqueFd(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  ~CapturedLog() { dup2(stderr_.get(), STDERR_FILENO); }

  // Waits for the text, with a generous time limit; returns whether it was written. Any thread.
  bool Saw(std::string_view text) {
    std::lock_guard lock(mutex_);
    const Deadline deadline = Deadline::After(30);
    while (text_.find(text) == std::string::npos) {
      if (!WaitForDescriptor(pipe_.get(), POLLIN, deadline).ok()) return false;
      std::array<char, 4096> buffer;
      const ssize_t got = read(pipe_.get(), buffer.data(), buffer.size());
      if (got > 0) text_.append(buffer.data(), static_cast<size_t>(got));
    }
    return true;
  }

  const std::string& text() const { return text_; }

 private:
  UniqueFd stderr_;
  UniqueFd pipe_;
  std::mutex mutex_;
  std::string text_;
};

}  // namespace horoscale
