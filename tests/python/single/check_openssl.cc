// Compares the declarations in cpp/platform/tls_library.h with OpenSSL's headers.
#include <openssl/bio.h>
#include <openssl/ssl.h>

#include "platform/tls_library.h"

using C = horoscale::TlsConstants;

static_assert(C::kErrorSsl == SSL_ERROR_SSL);
static_assert(C::kErrorWantRead == SSL_ERROR_WANT_READ);
static_assert(C::kErrorWantWrite == SSL_ERROR_WANT_WRITE);
static_assert(C::kErrorSyscall == SSL_ERROR_SYSCALL);
static_assert(C::kErrorZeroReturn == SSL_ERROR_ZERO_RETURN);
static_assert(C::kControlMode == SSL_CTRL_MODE);
static_assert(C::kControlSetReadAhead == SSL_CTRL_SET_READ_AHEAD);
static_assert(C::kControlSetSessionCacheMode == SSL_CTRL_SET_SESS_CACHE_MODE);
static_assert(C::kControlSetMinVersion == SSL_CTRL_SET_MIN_PROTO_VERSION);
static_assert(C::kControlSetMaxVersion == SSL_CTRL_SET_MAX_PROTO_VERSION);
static_assert(C::kModeEnablePartialWrite == SSL_MODE_ENABLE_PARTIAL_WRITE);
static_assert(C::kModeAcceptMovingWriteBuffer == SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
static_assert(C::kSessionCacheOff == SSL_SESS_CACHE_OFF);
static_assert(C::kVerifyPeer == SSL_VERIFY_PEER);
static_assert(C::kKeyUpdateNotRequested == SSL_KEY_UPDATE_NOT_REQUESTED);
static_assert(C::kTls13 == TLS1_3_VERSION);
#ifdef SSL_OP_ENABLE_KTLS
static_assert(C::kOptionKernelTls == SSL_OP_ENABLE_KTLS);
#endif
#ifdef BIO_CTRL_GET_KTLS_SEND
static_assert(C::kBioControlGetKernelSend == BIO_CTRL_GET_KTLS_SEND);
#endif
