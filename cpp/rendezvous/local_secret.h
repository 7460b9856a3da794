// LocalSecret: the secret of a job on one host that was given none.
//
// Who serves the job's store on loopback makes it, and keeps it for as long as it serves in a file
// that only processes of the same user can read: /tmp/horoscale-<uid>/<port>. Nothing of the
// environment is part of the path, so that ranks that were started in different sessions find it.
//
// The folder is this user's, with mode 0700, or it is not used: another user who is faster can keep
// a job from starting, but not read the secret or replace it. A job that was killed leaves its file
// behind; the next one at the same address replaces it in one step, and who has read the old secret
// in between is refused by the store, and reads again.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "platform/deadline.h"
#include "rendezvous/address.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_server.h"

namespace horoscale {

class LocalSecret {
 public:
  // A new secret, which nobody knows yet.
  static Result<LocalSecret> Create();

  LocalSecret(LocalSecret&&) noexcept;
  LocalSecret& operator=(LocalSecret&&) noexcept;
  ~LocalSecret();  // removes the file, which is also removed when the process exits

  const std::string& text() const { return text_; }

  // Writes the file for the store at `address`, which listens by now.
  Status Publish(const HostPort& address);

  // What is there for the store at `address`. kTimeout if there is nothing yet; any other error is
  // final.
  static Result<std::string> Read(const HostPort& address);

 private:
  explicit LocalSecret(std::string text);

  struct Removal;  // of the file
  std::string text_;
  std::unique_ptr<Removal> removal_;
};

// Connects to a store whose server has published its secret, or will before the deadline; stores
// the secret. The server proves that it knows it, too.
Result<std::unique_ptr<StoreClient>> ConnectWithLocalSecret(const HostPort& address,
                                                            const Deadline& deadline,
                                                            std::string* secret,
                                                            bool encrypt = false);

}  // namespace horoscale
