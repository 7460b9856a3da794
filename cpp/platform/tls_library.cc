#include "platform/tls_library.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/dynamic_library.h"
#include "platform/environment.h"
#include "platform/function_loader.h"

namespace horoscale {
namespace {

using C = TlsConstants;

constexpr char kCipherSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherSuiteBytes[] = {0x13, 0x01};
// Each key belongs to one connection, so the identity need not distinguish keys.
constexpr std::string_view kIdentity = "horoscale";
// Read size: several records of at most 16 KiB.
constexpr size_t kReadBufferBytes = 128 << 10;

std::mutex mutex;  // guards the next three
const TlsLibrary* opened = nullptr;
pid_t opened_by = 0;
std::string& LibraryDirectory() {
  static auto* const directory = new std::string;
  return *directory;
}

std::shared_mutex& UseMutex() {
  static auto* const use_mutex = new std::shared_mutex;
  return *use_mutex;
}
bool exiting = false;  // guarded by UseMutex()

// The name of the first missing function, or null. Functions of libcrypto are found because libssl
// depends on it.
const char* LoadFunctions(const DynamicLibrary& library, TlsFunctions& f) {
  return FunctionLoader(library)
      .Load("TLS_method", f.method)
      .Load("SSL_CTX_new", f.context_new)
      .Load("SSL_CTX_ctrl", f.context_control)
      .Load("SSL_CTX_set_options", f.context_set_options)
      .Load("SSL_CTX_set_ciphersuites", f.context_set_ciphersuites)
      .Load("SSL_CTX_set_num_tickets", f.context_set_num_tickets)
      .Load("SSL_CTX_set_default_read_buffer_len", f.context_set_default_read_buffer_len)
      .Load("SSL_CTX_set_psk_use_session_callback", f.context_set_psk_use_session_callback)
      .Load("SSL_CTX_set_psk_find_session_callback", f.context_set_psk_find_session_callback)
      .Load("SSL_new", f.create)
      .Load("SSL_free", f.free)
      .Load("SSL_set_fd", f.set_fd)
      .Load("SSL_set_ex_data", f.set_ex_data)
      .Load("SSL_get_ex_data", f.get_ex_data)
      .Load("SSL_set_verify", f.set_verify)
      .Load("SSL_set_connect_state", f.set_connect_state)
      .Load("SSL_set_accept_state", f.set_accept_state)
      .Load("SSL_do_handshake", f.do_handshake)
      .Load("SSL_session_reused", f.session_reused)
      .Load("SSL_read", f.read)
      .Load("SSL_write", f.write)
      .Load("SSL_get_error", f.get_error)
      .Load("SSL_key_update", f.key_update)
      .Load("SSL_get_wbio", f.get_wbio)
      .Load("SSL_SESSION_new", f.session_new)
      .Load("SSL_SESSION_free", f.session_free)
      .Load("SSL_SESSION_set1_master_key", f.session_set1_master_key)
      .Load("SSL_SESSION_set_cipher", f.session_set_cipher)
      .Load("SSL_SESSION_set_protocol_version", f.session_set_protocol_version)
      .Load("SSL_CIPHER_find", f.cipher_find)
      .Load("BIO_ctrl", f.bio_control)
      .Load("ERR_get_error", f.next_error)
      .Load("ERR_clear_error", f.clear_errors)
      .Load("ERR_error_string_n", f.error_text)
      .Load("OpenSSL_version", f.version)
      .Load("OpenSSL_version_num", f.version_number)
      .missing();
}

// The pre-shared secret as a session to resume; null if out of memory.
SslSession* SessionOf(Ssl* ssl) {
  const TlsFunctions& f = opened->call();
  const auto* const key = static_cast<const unsigned char*>(f.get_ex_data(ssl, 0));
  SslSession* const session = f.session_new();
  if (session == nullptr) return nullptr;
  if (f.session_set1_master_key(session, key, kTlsKeyBytes) == 1 &&
      f.session_set_cipher(session, f.cipher_find(ssl, kCipherSuiteBytes)) == 1 &&
      f.session_set_protocol_version(session, C::kTls13) == 1) {
    return session;
  }
  f.session_free(session);
  return nullptr;
}

int UseSession(Ssl* ssl, const SslDigest*, const unsigned char** identity, size_t* bytes,
               SslSession** session) {
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *bytes = kIdentity.size();
  *session = SessionOf(ssl);
  return *session != nullptr ? 1 : 0;
}

int FindSession(Ssl* ssl, const unsigned char* identity, size_t bytes, SslSession** session) {
  const bool is_ours =
      bytes == kIdentity.size() && std::memcmp(identity, kIdentity.data(), bytes) == 0;
  *session = is_ours ? SessionOf(ssl) : nullptr;
  return *session != nullptr || !is_ours ? 1 : 0;
}

void EndAtExit() {
  if (opened_by != getpid()) return;  // a forked child, where our other threads don't run
  const std::unique_lock lock(UseMutex());
  exiting = true;
}

// A library that the process has already loaded comes first, because the process may depend on it
// more than we do.
std::vector<std::string> Candidates() {
  if (const auto variable = FindVariable("LIBSSL")) return {variable->value};
  std::vector<std::string> names = MappedFiles("libssl.so.");
  for (const char* const name : {"libssl.so.3", "libssl.so.1.1"}) {
    if (!LibraryDirectory().empty()) names.push_back(LibraryDirectory() + "/" + name);
  }
  names.insert(names.end(), {"libssl.so.3", "libssl.so.1.1"});
  return names;
}

}  // namespace

TlsLibrary::Use::Use() : lock_(UseMutex()) {}

bool TlsLibrary::Use::is_over() const { return exiting; }

void TlsLibrary::SetLibraryDirectory(std::string directory) {
  const std::lock_guard lock(mutex);
  LibraryDirectory() = std::move(directory);
}

Result<const TlsLibrary*> TlsLibrary::Open() {
  const std::lock_guard lock(mutex);
  if (opened != nullptr) return opened;
  auto found = Find();
  if (!found.ok()) return found.status();
  opened = new TlsLibrary(found.TakeValue());
  opened_by = getpid();
  // After the library's own handler, which therefore runs later.
  std::atexit(EndAtExit);
  return opened;
}

Result<TlsLibrary> TlsLibrary::Find() {
  std::string tried;
  for (const std::string& name : Candidates()) {
    const auto library = DynamicLibrary::OpenPrivate(name);
    if (!library.ok()) {
      tried += "\n  " + library.status().message();
      continue;
    }
    TlsFunctions functions = {};
    if (const char* const missing = LoadFunctions(*library, functions)) {
      tried += "\n  " + name + ": it has no " + missing + ": OpenSSL 1.1.1 or newer is required";
      continue;
    }
    TlsLibrary tls(functions);
    tls.name_ = std::string(functions.version(0)) + " (" +
                DynamicLibrary::FileOf(reinterpret_cast<const void*>(functions.create)) + ")";
    HS_RETURN_IF_ERROR(tls.MakeContext(UseSession, FindSession));
    return tls;
  }
  return Status(StatusCode::kUnimplemented,
                "HOROSCALE_ENCRYPT=1 requires OpenSSL, which can't be loaded; set HOROSCALE_LIBSSL "
                "to its path. Tried:" +
                    tried);
}

// Neither side has a certificate: without the right key every handshake fails.
Status TlsLibrary::MakeContext(SslUseSession use, SslFindSession find) {
  const TlsFunctions& f = functions_;
  context_ = f.context_new(f.method());
  const auto control = [&](int command, long number) {
    return f.context_control(context_, command, number, nullptr);
  };
  if (context_ == nullptr || control(C::kControlSetMinVersion, C::kTls13) != 1 ||
      control(C::kControlSetMaxVersion, C::kTls13) != 1 ||
      f.context_set_ciphersuites(context_, kCipherSuite) != 1) {
    return {StatusCode::kUnimplemented, name_ + " does not offer TLS 1.3 with " + kCipherSuite +
                                            ": its configuration (openssl.cnf) may forbid it"};
  }
  control(C::kControlMode, C::kModeEnablePartialWrite | C::kModeAcceptMovingWriteBuffer);
  control(C::kControlSetSessionCacheMode, C::kSessionCacheOff);
  control(C::kControlSetReadAhead, 1);
  f.context_set_default_read_buffer_len(context_, kReadBufferBytes);
  f.context_set_num_tickets(context_, 0);
  // In 3.0 and 3.1 the kernel encrypts sent data. From 3.2 it would also decrypt received data,
  // which is incompatible with read-ahead.
  if (f.version_number() >= 0x30000000 && f.version_number() < 0x30200000) {
    f.context_set_options(context_, C::kOptionKernelTls);
  }
  f.context_set_psk_use_session_callback(context_, use);
  f.context_set_psk_find_session_callback(context_, find);
  return Status::Ok();
}

}  // namespace horoscale
