#include "rendezvous/local_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "platform/unique_fd.h"
#include "platform/wait.h"
#include "rendezvous/secret.h"

namespace horoscale {
namespace {

constexpr double kLookSeconds = 0.02;
constexpr char kRemedy[] =
    ". To avoid this, set the same HOROSCALE_SECRET or HOROSCALE_SECRET_FILE for all ranks";

std::string FolderPath() { return "/tmp/horoscale-" + std::to_string(geteuid()); }

// The usual loopback names map to one file, because ranks may be given different names.
std::string FileName(const HostPort& address) {
  const std::string& host = address.host;
  const std::string port = std::to_string(address.port);
  const bool usual = host == "127.0.0.1" || host == "::1" || host == "localhost";
  return usual || host.find('/') != std::string::npos ? port : host + ":" + port;
}

std::string FilePath(const HostPort& address) { return FolderPath() + "/" + FileName(address); }

Status CheckPrivate(const struct stat& info, const std::string& path) {
  if (info.st_uid != geteuid()) {
    return Status::InvalidArgument(path + " belongs to user " + std::to_string(info.st_uid) +
                                   ": it can't be used for this job's secret" + kRemedy);
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return Status::InvalidArgument(
      path + " is accessible to other users, so it can't be used for this " + "job; remove it");
}

// kTimeout if it does not exist.
Result<UniqueFd> OpenFolder() {
  const std::string path = FolderPath();
  UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid() && errno == ENOENT) return Status::Timeout("there is no directory " + path);
  if (!folder.valid()) return Status::System("opening the directory " + path, errno);
  struct stat info;
  if (fstat(folder.get(), &info) != 0) return Status::System("fstat of " + path, errno);
  HS_RETURN_IF_ERROR(CheckPrivate(info, path));
  return folder;
}

Result<UniqueFd> MakeFolder() {
  const std::string path = FolderPath();
  if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return Status::System("creating the directory " + path + " for the job's secret" + kRemedy,
                          errno);
  }
  return OpenFolder();
}

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Status::System("writing the job's secret", errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

// Removes the file with the object, or when the process exits, whichever comes first. A forked
// child does not remove it.
struct LocalSecret::Removal {
  Removal(UniqueFd folder_, std::string name_, ino_t inode_)
      : folder(std::move(folder_)), name(std::move(name_)), inode(inode_) {
    static const int at_exit = std::atexit([] {
      const std::lock_guard lock(Mutex());
      for (Removal* removal : All()) removal->Remove();
    });
    (void)at_exit;
    const std::lock_guard lock(Mutex());
    All().insert(this);
  }
  ~Removal() {
    const std::lock_guard lock(Mutex());
    All().erase(this);
    Remove();
  }
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;

  void Remove() {
    struct stat info;
    if (getpid() != maker) return;
    if (fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (info.st_ino == inode)
      unlinkat(folder.get(), name.c_str(), 0);  // otherwise it belongs to a
                                                // later job
  }

  // Neither is ever destroyed: the process may exit in any order.
  static std::mutex& Mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::set<Removal*>& All() {
    static auto& all = *new std::set<Removal*>;
    return all;
  }

  const UniqueFd folder;
  const std::string name;
  const ino_t inode;
  const pid_t maker = getpid();
};

Result<LocalSecret> LocalSecret::Create() {
  Result<std::string> text = NewSecret();
  if (!text.ok()) return text.status();
  return LocalSecret(text.TakeValue());
}

LocalSecret::LocalSecret(std::string text) : text_(std::move(text)) {}
LocalSecret::LocalSecret(LocalSecret&&) noexcept = default;
LocalSecret& LocalSecret::operator=(LocalSecret&&) noexcept = default;
LocalSecret::~LocalSecret() = default;

Status LocalSecret::Publish(const HostPort& address) {
  Result<UniqueFd> folder = MakeFolder();
  if (!folder.ok()) return folder.status();
  Result<std::string> unique = NewSecret();
  if (!unique.ok()) return unique.status();
  // Written under a random name, and then renamed atomically.
  const std::string draft = "." + unique->substr(0, 16);
  const UniqueFd file(openat(folder->get(), draft.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                             S_IRUSR | S_IWUSR));
  if (!file.valid()) return Status::System("creating a file in " + FolderPath(), errno);
  struct stat info;
  Status status = WriteAll(file.get(), text_);
  if (status.ok() && fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) {  // whatever the umask was
    status = Status::System("fchmod", errno);
  }
  if (status.ok() && fstat(file.get(), &info) != 0) status = Status::System("fstat", errno);
  const std::string name = FileName(address);
  if (status.ok() && renameat(folder->get(), draft.c_str(), folder->get(), name.c_str()) != 0) {
    status = Status::System("making " + FilePath(address), errno);
  }
  if (!status.ok()) {
    unlinkat(folder->get(), draft.c_str(), 0);
    return status;
  }
  removal_ = std::make_unique<Removal>(folder.TakeValue(), name, info.st_ino);
  return {};
}

Result<std::string> LocalSecret::Read(const HostPort& address) {
  Result<UniqueFd> folder = OpenFolder();
  if (!folder.ok()) return folder.status();
  const std::string path = FilePath(address);
  const UniqueFd file(openat(folder->get(), FileName(address).c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return Status::Timeout("there is no file " + path);
  if (!file.valid()) return Status::System("opening " + path, errno);
  struct stat info;
  if (fstat(file.get(), &info) != 0) return Status::System("fstat of " + path, errno);
  HS_RETURN_IF_ERROR(CheckPrivate(info, path));
  std::array<char, kNewSecretCharacters + 1> text;
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) return Status::System("reading " + path, errno);
  if (got == static_cast<ssize_t>(kNewSecretCharacters)) {
    return std::string(text.data(), kNewSecretCharacters);
  }
  return Status::InvalidArgument(path + " does not contain a job's secret: remove it");
}

Result<std::unique_ptr<StoreClient>> ConnectWithLocalSecret(const HostPort& address,
                                                            const Deadline& deadline,
                                                            std::string* secret, bool encrypt) {
  std::string refused;  // the secret of an earlier job, which the store rejects
  Status last;
  while (true) {
    Result<std::string> found = LocalSecret::Read(address);
    if (found.ok() && *found != refused) {
      auto client =
          StoreClient::Connect(address.host, address.port, *found, deadline.SecondsLeft(), encrypt);
      if (client.ok()) *secret = *found;
      if (client.ok() || client.status().code() != StatusCode::kUnauthenticated) return client;
      refused = *found;
      last = client.status();
    } else if (!found.ok()) {
      if (found.status().code() != StatusCode::kTimeout) return found.status();
      last = Status::Timeout(
          "the rank that serves the job's store did not start in time, or runs as another user or "
          "in another container: " +
          found.status().message() + ", which would contain the secret" + kRemedy);
    }
    if (deadline.Passed()) return last;
    const timespec pause = ToTimespec(std::min(kLookSeconds, deadline.SecondsLeft()));
    nanosleep(&pause, nullptr);
  }
}

}  // namespace horoscale
