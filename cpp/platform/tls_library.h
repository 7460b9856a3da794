// TlsLibrary: OpenSSL 1.1.1 or newer (for TLS 1.3), loaded at run time. Its headers are not needed
// to build; the declarations in use are repeated here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <string>

#include "base/status.h"

namespace horoscale {

// OpenSSL's opaque types.
struct Ssl;
struct SslContext;
struct SslSession;
struct SslCipher;
struct SslMethod;
struct SslBio;
struct SslDigest;

using SslUseSession = int (*)(Ssl*, const SslDigest*, const unsigned char** identity,
                              size_t* identity_bytes, SslSession**);
using SslFindSession = int (*)(Ssl*, const unsigned char* identity, size_t identity_bytes,
                               SslSession**);

struct TlsFunctions {
  const SslMethod* (*method)();
  SslContext* (*context_new)(const SslMethod*);
  long (*context_control)(SslContext*, int command, long number, void* pointer);
  uint64_t (*context_set_options)(SslContext*, uint64_t);
  int (*context_set_ciphersuites)(SslContext*, const char*);
  int (*context_set_num_tickets)(SslContext*, size_t);
  void (*context_set_default_read_buffer_len)(SslContext*, size_t);
  void (*context_set_psk_use_session_callback)(SslContext*, SslUseSession);
  void (*context_set_psk_find_session_callback)(SslContext*, SslFindSession);
  Ssl* (*create)(SslContext*);
  void (*free)(Ssl*);
  int (*set_fd)(Ssl*, int fd);
  int (*set_ex_data)(Ssl*, int index, void*);
  void* (*get_ex_data)(const Ssl*, int index);
  void (*set_verify)(Ssl*, int mode, void* callback);
  void (*set_connect_state)(Ssl*);
  void (*set_accept_state)(Ssl*);
  int (*do_handshake)(Ssl*);
  int (*session_reused)(const Ssl*);
  int (*read)(Ssl*, void*, int bytes);
  int (*write)(Ssl*, const void*, int bytes);
  int (*get_error)(const Ssl*, int result);
  int (*key_update)(Ssl*, int type);
  SslBio* (*get_wbio)(const Ssl*);
  SslSession* (*session_new)();
  void (*session_free)(SslSession*);
  int (*session_set1_master_key)(SslSession*, const unsigned char*, size_t bytes);
  int (*session_set_cipher)(SslSession*, const SslCipher*);
  int (*session_set_protocol_version)(SslSession*, int);
  const SslCipher* (*cipher_find)(Ssl*, const unsigned char* two_bytes);
  long (*bio_control)(SslBio*, int command, long number, void* pointer);
  unsigned long (*next_error)();
  void (*clear_errors)();
  void (*error_text)(unsigned long, char*, size_t bytes);
  const char* (*version)(int);
  unsigned long (*version_number)();
};

// Values from OpenSSL's headers; tests/python/single/test_openssl_constants.py compares them.
struct TlsConstants {
  static constexpr int kErrorSsl = 1;
  static constexpr int kErrorWantRead = 2;
  static constexpr int kErrorWantWrite = 3;
  static constexpr int kErrorSyscall = 5;
  static constexpr int kErrorZeroReturn = 6;
  static constexpr int kControlMode = 33;
  static constexpr int kControlSetReadAhead = 41;
  static constexpr int kControlSetSessionCacheMode = 44;
  static constexpr int kControlSetMinVersion = 123;
  static constexpr int kControlSetMaxVersion = 124;
  static constexpr int kBioControlGetKernelSend = 73;
  static constexpr long kModeEnablePartialWrite = 1;
  static constexpr long kModeAcceptMovingWriteBuffer = 2;
  static constexpr long kSessionCacheOff = 0;
  static constexpr int kVerifyPeer = 1;
  static constexpr int kKeyUpdateNotRequested = 0;
  static constexpr uint64_t kOptionKernelTls = uint64_t{1} << 3;  // no effect before 3.0
  static constexpr int kTls13 = 0x0304;
};

class TlsLibrary {
 public:
  // Returns the process-wide instance; kUnimplemented lists what was tried.
  static Result<const TlsLibrary*> Open();
  // A directory that is searched before the system's.
  static void SetLibraryDirectory(std::string directory);

  const TlsFunctions& call() const { return functions_; }
  // Whether a connection's key can be updated: before 1.1.1l, that loses a partially received
  // record.
  bool changes_keys() const { return functions_.version_number() >= 0x101010cf; }
  // For connections of either role.
  SslContext* context() const { return context_; }
  // Such as "OpenSSL 3.0.19 27 Jan 2026 (/usr/lib/libssl.so.3)".
  const std::string& name() const { return name_; }

  // OpenSSL cleans up when the process exits, while our threads may still run. A thread must hold a
  // Use while it calls the library, and must not call it if the Use reports that the process is
  // exiting.
  class Use {
   public:
    Use();
    bool is_over() const;

   private:
    std::shared_lock<std::shared_mutex> lock_;
  };

 private:
  explicit TlsLibrary(const TlsFunctions& functions) : functions_(functions) {}
  static Result<TlsLibrary> Find();
  Status MakeContext(SslUseSession use, SslFindSession find);

  TlsFunctions functions_;
  SslContext* context_ = nullptr;
  std::string name_;
};

// The pre-shared key of a connection, used instead of certificates.
inline constexpr size_t kTlsKeyBytes = 32;

}  // namespace horoscale
