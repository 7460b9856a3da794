#include "platform/tls_layer.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "platform/log.h"
#include "platform/wait.h"

namespace horoscale {
namespace {

using C = TlsConstants;

constexpr size_t kRecordBytes = 16 << 10;

Status Exiting() { return {StatusCode::kShutdown, "the process is exiting"}; }

// OpenSSL writes to sockets with write(), which raises SIGPIPE if the peer has closed.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlocked() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const int kept = errno;
    if (was_raised_) {
      constexpr timespec kNow{};
      sigtimedwait(&sigpipe_, nullptr, &kNow);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = kept;
  }
  // After an error a signal may be pending.
  void OnError() { was_raised_ = true; }

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_raised_ = false;
};

// Returns the `bytes` bytes of the pieces that follow the first `skip`; copied to `staged` if they
// span several pieces.
const std::byte* Contiguous(std::span<const std::span<const std::byte>> pieces, size_t skip,
                            size_t bytes, std::vector<std::byte>& staged) {
  staged.clear();
  for (const std::span<const std::byte> piece : pieces) {
    const size_t passed = std::min(skip, piece.size());
    skip -= passed;
    const std::span<const std::byte> rest = piece.subspan(passed);
    if (rest.empty()) continue;
    if (staged.empty() && rest.size() >= bytes) return rest.data();
    const size_t part = std::min(rest.size(), bytes - staged.size());
    staged.insert(staged.end(), rest.begin(), rest.begin() + static_cast<ptrdiff_t>(part));
    if (staged.size() == bytes) break;
  }
  return staged.data();
}

}  // namespace

Result<std::unique_ptr<TlsLayer>> TlsLayer::Create(Role role, int fd, std::string peer,
                                                   const TlsKey& key, uint64_t bytes_of_key) {
  const auto library = TlsLibrary::Open();
  if (!library.ok()) return library.status();
  std::unique_ptr<TlsLayer> layer(new TlsLayer(**library, fd, std::move(peer), key, bytes_of_key));
  const TlsLibrary::Use use;
  if (use.is_over()) return Exiting();
  const TlsFunctions& f = (*library)->call();
  layer->ssl_ = f.create((*library)->context());
  if (layer->ssl_ == nullptr || f.set_fd(layer->ssl_, fd) != 1 ||
      f.set_ex_data(layer->ssl_, 0, layer->key_.data()) != 1) {
    return layer->Failure("preparing TLS with ", C::kErrorSsl);
  }
  if (role == Role::kServer) {
    f.set_accept_state(layer->ssl_);
  } else {
    f.set_connect_state(layer->ssl_);
    f.set_verify(layer->ssl_, C::kVerifyPeer, nullptr);  // no certificate is acceptable
  }
  return layer;
}

TlsLayer::TlsLayer(const TlsLibrary& library, int fd, std::string peer, const TlsKey& key,
                   uint64_t bytes_of_key)
    : library_(library), fd_(fd), peer_(std::move(peer)), key_(key), bytes_of_key_(bytes_of_key) {}

TlsLayer::~TlsLayer() {
  const TlsLibrary::Use use;
  if (!use.is_over() && ssl_ != nullptr) library_.call().free(ssl_);
}

Result<bool> TlsLayer::Handshake() {
  const TlsLibrary::Use use;
  return use.is_over() ? Exiting() : Shake();
}

Result<bool> TlsLayer::Shake() {
  HS_RETURN_IF_ERROR(broken_);
  if (is_ready_) return true;
  SigpipeBlocked blocked;
  library_.call().clear_errors();
  const int result = library_.call().do_handshake(ssl_);
  if (result == 1) {
    HS_RETURN_IF_ERROR(OnHandshakeDone());
    return true;
  }
  const int error = library_.call().get_error(ssl_, result);
  if (error == C::kErrorWantRead || error == C::kErrorWantWrite) {
    awaited_ = error == C::kErrorWantRead ? POLLIN : POLLOUT;
    return false;
  }
  blocked.OnError();
  return broken_ = Failure("TLS handshake with ", error);
}

Status TlsLayer::OnHandshakeDone() {
  // The pre-shared key was used, not a certificate.
  if (library_.call().session_reused(ssl_) != 1) {
    return broken_ = Status::Unauthenticated("TLS handshake with " + peer_ +
                                             ": the peer does not have the connection's key");
  }
  is_ready_ = true;
  has_pending_ = true;  // data that arrived with the end of the handshake
  kernel_sends_ = library_.call().bio_control(library_.call().get_wbio(ssl_),
                                              C::kBioControlGetKernelSend, 0, nullptr) > 0;
  static std::once_flag told;
  std::call_once(told, [this] {
    Log(LogLevel::kInfo, "connections are encrypted: TLS 1.3 by " + library_.name() +
                             ", kernel TLS " + (kernel_sends_ ? "for sent data" : "not used"));
  });
  return Status::Ok();
}

Result<size_t> TlsLayer::Send(std::span<const std::span<const std::byte>> pieces) {
  const TlsLibrary::Use use;
  if (use.is_over()) return Exiting();
  HS_RETURN_IF_ERROR(send_broken_);
  const Result<bool> ready = Shake();
  if (!ready.ok()) return ready.status();
  if (!*ready) return size_t{0};
  SigpipeBlocked blocked;
  size_t total = 0;
  for (const std::span<const std::byte> piece : pieces) total += piece.size();
  size_t sent = 0;
  while (sent < total) {
    HS_RETURN_IF_ERROR(ChangeKeyIfDue());
    const size_t bytes = attempted_ > 0 ? attempted_ : std::min(total - sent, kRecordBytes);
    const std::byte* const next = Contiguous(pieces, sent, bytes, staged_);
    library_.call().clear_errors();
    const int result = library_.call().write(ssl_, next, static_cast<int>(bytes));
    if (result <= 0) {
      const int error = library_.call().get_error(ssl_, result);
      attempted_ = bytes;
      if (error == C::kErrorWantWrite || error == C::kErrorWantRead) break;
      blocked.OnError();
      return send_broken_ = Failure("sending to ", error);
    }
    attempted_ = 0;
    sent += static_cast<size_t>(result);
    sent_with_key_ += static_cast<size_t>(result);
  }
  return sent;
}

// The kernel and older libraries can't update keys. There AES-GCM's security margin shrinks
// slightly on very long connections, which is still harmless.
Status TlsLayer::ChangeKeyIfDue() {
  if (sent_with_key_ < bytes_of_key_ || attempted_ > 0) return Status::Ok();
  if (kernel_sends_ || !library_.changes_keys()) return Status::Ok();
  // If the update can't be sent at once, OpenSSL does not read either until it is sent: with both
  // sides' buffers full, neither would read again.
  if (!WaitForDescriptor(fd_, POLLOUT, Deadline::After(0)).ok()) return Status::Ok();
  if (library_.call().key_update(ssl_, C::kKeyUpdateNotRequested) != 1) {
    return Failure("updating the key for ", C::kErrorSsl);
  }
  sent_with_key_ = 0;
  ++key_changes_;
  return Status::Ok();
}

Result<size_t> TlsLayer::Receive(std::span<const std::span<std::byte>> pieces) {
  const TlsLibrary::Use use;
  if (use.is_over()) return Exiting();
  const Result<bool> ready = Shake();
  if (!ready.ok()) return ready.status();
  if (!*ready) return size_t{0};
  SigpipeBlocked blocked;  // OpenSSL may write an alert
  size_t got = 0;
  has_pending_ = false;
  for (std::span<std::byte> piece : pieces) {
    while (!piece.empty()) {
      library_.call().clear_errors();
      const int bytes = static_cast<int>(std::min(piece.size(), size_t{1} << 30));
      const int result = library_.call().read(ssl_, piece.data(), bytes);
      if (result <= 0) {
        const int error = library_.call().get_error(ssl_, result);
        if (error == C::kErrorWantRead || error == C::kErrorWantWrite) return got;
        blocked.OnError();
        broken_ = Failure("receiving from ", error);
        if (got == 0) return broken_;
        has_pending_ = true;  // the next call returns the failure
        return got;
      }
      got += static_cast<size_t>(result);
      piece = piece.subspan(static_cast<size_t>(result));
    }
  }
  has_pending_ = true;
  return got;
}

Status TlsLayer::Failure(const char* doing, int error) const {
  const int number = errno;
  const unsigned long code = library_.call().next_error();
  if (error == C::kErrorSyscall && code == 0 && number != 0) {
    return Status::System(doing + peer_, number);
  }
  std::string text(256, '\0');
  if (code != 0) {
    library_.call().error_text(code, text.data(), text.size());
    text.resize(std::min(text.find('\0'), text.size()));
  }
  // A peer announces its end in its own messages, so it doesn't matter how its stream ends.
  const bool has_ended =
      error == C::kErrorZeroReturn || code == 0 || text.find("unexpected eof") != std::string::npos;
  if (has_ended) return {StatusCode::kSystem, peer_ + " closed the connection"};
  return Status::Protocol(doing + peer_ + ": " + text +
                          " (the data was modified in transit, or the keys differ)");
}

}  // namespace horoscale
