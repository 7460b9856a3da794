#include "platform/thread.h"

#include <signal.h>

#include <memory>
#include <string>

namespace horoscale {
namespace {

void* RunBody(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

Result<Thread> Thread::Start(const char* name, std::function<void()> body) {
  auto argument = std::make_unique<std::function<void()>>(std::move(body));
  // The new thread inherits the mask, so it never runs with signals unblocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t handle;
  const int error = pthread_create(&handle, nullptr, RunBody, argument.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Status::System("starting thread " + std::string(name), error);
  argument.release();  // NOLINT: RunBody owns it now
  pthread_setname_np(handle, std::string(name).substr(0, 15).c_str());
  return Thread(handle);
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    Join();
    handle_ = std::exchange(other.handle_, std::nullopt);
  }
  return *this;
}

void Thread::Detach() {
  if (handle_) pthread_detach(*std::exchange(handle_, std::nullopt));
}

void Thread::Join() {
  if (handle_) pthread_join(*std::exchange(handle_, std::nullopt), nullptr);
}

}  // namespace horoscale
