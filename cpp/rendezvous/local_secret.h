// LocalSecret: the secret of a job on one host for which none was set.
//
// The process that serves the job's store on loopback generates the secret and keeps it, while it
// serves, in a file that only processes of the same user can read: /tmp/horoscale-<uid>/<port>. The
// path does not depend on the environment, so that ranks from different sessions find it.
//
// The directory must belong to this user and have mode 0700; otherwise it is not used. Another user
// who creates it first can prevent a job from starting, but not read or replace the secret. A
// killed job leaves its file behind. The next job at the same address replaces it atomically. A
// process that has read the old secret is rejected by the store and reads the file again.
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
  // Generates a new secret.
  static Result<LocalSecret> Create();

  LocalSecret(LocalSecret&&) noexcept;
  LocalSecret& operator=(LocalSecret&&) noexcept;
  ~LocalSecret();  // removes the file; it is also removed when the process exits

  const std::string& text() const { return text_; }

  // Writes the file for the store at `address`, which must already be listening.
  Status Publish(const HostPort& address);

  // Reads the secret for the store at `address`. kTimeout if there is none yet; any other error is
  // final.
  static Result<std::string> Read(const HostPort& address);

 private:
  explicit LocalSecret(std::string text);

  struct Removal;  // of the file
  std::string text_;
  std::unique_ptr<Removal> removal_;
};

// Connects to a store whose server publishes its secret before the deadline, and stores the secret.
// The server also proves that it knows it.
Result<std::unique_ptr<StoreClient>> ConnectWithLocalSecret(const HostPort& address,
                                                            const Deadline& deadline,
                                                            std::string* secret,
                                                            bool encrypt = false);

}  // namespace horoscale
